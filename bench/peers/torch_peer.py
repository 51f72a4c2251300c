"""The same operations through PyTorch: its own threaded group, or gloo in processes.

torch_peer.py {threaded,gloo,spawned} OP RANKS COUNT SECONDS

The operation `world` sets a world up and tears it down, with one barrier between: a test of MultiThreadedTestCase for the threaded
group; for gloo in processes that stay, for spawned in such as are started for it (the time is compare.py's to take).
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
WORLDS = 9


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
        report(times)


def report(seconds_of_each):
    print(f"ns_per_op {statistics.median(seconds_of_each) * 1e9:.1f}", flush=True)


def reused_worker(rank, path, ranks, worlds):
    torch.set_num_threads(1)
    times = []
    for world in range(worlds):
        begin = time.perf_counter()
        dist.init_process_group("gloo", init_method=f"file://{path}{world}", rank=rank, world_size=ranks)
        dist.barrier()
        dist.destroy_process_group()
        times.append(time.perf_counter() - begin)
    if rank == 0 and worlds > 1:
        report(times[1:])


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

        def test_world(self):
            dist.barrier()

    import unittest

    torch.set_num_threads(1)
    times = []
    for _ in range(1 + WORLDS if op == "world" else 1):
        begin = time.perf_counter()
        with open(os.devnull, "w") as nowhere:
            result = unittest.TextTestRunner(stream=nowhere).run(Bench("test_world" if op == "world" else "test_it"))
        times.append(time.perf_counter() - begin)
        if not result.wasSuccessful():
            sys.exit(1)
    if op == "world":
        report(times[1:])


if __name__ == "__main__":
    kind, op, ranks, count, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
    if kind == "threaded":
        threaded(op, ranks, count, seconds)
    else:
        worlds = 1 if kind == "spawned" else 1 + WORLDS
        with tempfile.TemporaryDirectory() as folder:
            if op == "world":
                torch.multiprocessing.spawn(reused_worker, (folder + "/store", ranks, worlds), nprocs=ranks)
            else:
                torch.multiprocessing.spawn(gloo_worker, (folder + "/store", op, ranks, count, seconds), nprocs=ranks)
