"""As tensor_parallel.py, but each rank has its part of the sequence outside of the block."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.wide = nn.Linear(8, 16)
        self.narrow = nn.Linear(16, 8)

    def forward(self, x):
        return self.narrow(torch.relu(self.wide(self.norm(x))))


device = torch.accelerator.current_accelerator() if torch.accelerator.device_count() > 1 else torch.device("cpu")
dist.init_process_group(dist.get_default_backend_for_device(device))
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh(device.type, (size,))
torch.manual_seed(1)
model, whole = Block().to(device), Block().to(device)
whole.load_state_dict(model.state_dict())
model = parallelize_module(
    model,
    mesh,
    {
        "norm": SequenceParallel(sequence_dim=0),
        "wide": ColwiseParallel(input_layouts=Shard(0)),
        "narrow": RowwiseParallel(output_layouts=Shard(0)),
    },
)
torch.manual_seed(2)
x = torch.randn(size * 2, 8, device=device)
part = model(x.chunk(size)[rank])
torch.testing.assert_close(part, whole(x).chunk(size)[rank])
part.sum().backward()
whole(x).sum().backward()
torch.testing.assert_close(model.wide.weight.grad.full_tensor(), whole.wide.weight.grad)
print(f"rank {rank}: rows {rank * 2} to {rank * 2 + 1}, sum {part.sum().item():.4f}")
dist.destroy_process_group()
