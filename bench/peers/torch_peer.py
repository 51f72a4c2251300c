"""The same operations through PyTorch: its own threaded group, or gloo in processes.

torch_peer.py {threaded,gloo} OP RANKS COUNT SECONDS
"""

import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist

BATCHES = 5
WARM_UP = 3


def operation(op, ranks, count, rank):
    part = max(1, count // ranks)
    in_parts = op in ("all_gather", "reduce_scatter", "all_to_all")
    x = torch.ones(part * ranks if in_parts else count)
    y = torch.ones_like(x)
    if op == "all_reduce":
        return lambda: dist.all_reduce(x, dist.ReduceOp.MAX)
    if op == "all_gather":
        return lambda: dist.all_gather_into_tensor(y, x[:part])
    if op == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(y[:part], x)
    if op == "all_to_all":
        return lambda: dist.all_to_all_single(y, x)
    if op == "broadcast":
        return lambda: dist.broadcast(x, 0)
    if op == "barrier":
        return dist.barrier

    def ring():
        sent = dist.isend(x, (rank + 1) % ranks)
        dist.recv(y, (rank + ranks - 1) % ranks)
        sent.wait()

    return ring


def program(op, ranks, count, seconds, rank):
    call = operation(op, ranks, count, rank)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(WARM_UP):
        call()
    each = max(1e-9, (time.perf_counter() - begin) / WARM_UP)
    batch = torch.tensor([max(1, int(seconds / BATCHES / each))])
    dist.broadcast(batch, 0)
    batch = int(batch.item())
    times = []
    for _ in range(BATCHES):
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(batch):
            call()
        times.append((time.perf_counter() - begin) / batch)
    if rank == 0:
        print(f"ns_per_op {statistics.median(times) * 1e9:.1f}", flush=True)


def gloo_worker(rank, path, op, ranks, count, seconds):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks)
    program(op, ranks, count, seconds, rank)
    dist.destroy_process_group()


def threaded(op, ranks, count, seconds):
    from torch.testing._internal.common_distributed import MultiThreadedTestCase

    class Bench(MultiThreadedTestCase):
        world_size = ranks

        def setUp(self):
            super().setUp()
            self._spawn_threads()

        def test_it(self):
            program(op, ranks, count, seconds, self.rank)

    import unittest

    torch.set_num_threads(1)
    result = unittest.TextTestRunner(stream=open(os.devnull, "w")).run(Bench("test_it"))
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    kind, op, ranks, count, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
    if kind == "threaded":
        threaded(op, ranks, count, seconds)
    else:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(gloo_worker, (folder + "/store", op, ranks, count, seconds), nprocs=ranks)
