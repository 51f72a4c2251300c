"""Wrong: looks at a sum before the wait for it."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
x = torch.full((2,), float(dist.get_rank() + 1))
work = dist.all_reduce(x, async_op=True)
assert x.tolist() == [3.0, 3.0], x
work.wait()
