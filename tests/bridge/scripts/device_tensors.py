"""Calls of tensors on a device, cases by their names: device_tensors.py DEVICE [NAME...]; what they came to, as JSON.

DEVICE "cuda": a GPU, in a torch with CUDA (tools/gpu_session.sh). Else the module of a device that is played and stands where such a
torch has its own (played_device.cc): the memory of tensors on "cuda:0" is the process's, and what runs there runs in the device's own
time, a stream beside the other.
Exits with 77 where there is no GPU, 1 if a case failed.
"""

import importlib.util
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import rankloom.torch
import torch
import torch.distributed as dist

RANKS = 3
CASES: dict[str, Callable[[], None]] = {}


class Gpu:
    """The functions of the played device's module, by a GPU."""

    class Barrier:
        """Holds up the calling thread's stream until it is let through."""

        class _Work(dist._Work):
            def __init__(self) -> None:
                super().__init__()
                self.future: torch.futures.Future[None] = torch.futures.Future()

            def get_future(self) -> torch.futures.Future[None]:
                return self.future

        def __init__(self) -> None:
            self._work = self._Work()
            self._work.block_current_stream()

        def open(self) -> None:
            self._work.future.set_result(None)

    def __init__(self) -> None:
        self._streams = [torch.cuda.default_stream()]
        self._side = torch.cuda.Stream()
        self._load_kernels()

    def _load_kernels(self) -> None:
        """All that the cases launch: CUDA loads a kernel's code at its first launch, and then waits for streams that are blocked."""
        x = self.on_device(torch.arange(6.0).reshape(2, 3))
        views = [x, x.t(), x[:, 1:]]
        for view in views:
            view.add_(1.0)
            view.clone()
            view.contiguous()
            torch.empty_like(view, memory_format=torch.contiguous_format).copy_(view)
            view.copy_(view.clone())
            view.zero_()
            self.on_host(view)
        torch.cuda.synchronize()

    def on_device(self, host: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(host.size(), host.stride(), dtype=host.dtype, device="cuda").copy_(host)

    def on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(self._side):  # waits for no stream of a rank's
            return tensor.cpu()

    def new_stream(self) -> int:
        self._streams.append(torch.cuda.Stream())
        return len(self._streams) - 1

    def use_stream(self, number: int) -> None:
        torch.cuda.set_stream(self._streams[number])

    def idle(self) -> bool:
        return torch.cuda.current_stream().query()

    def synchronize(self) -> None:
        torch.cuda.current_stream().synchronize()

    def add(self, tensor: torch.Tensor, value: float) -> None:
        tensor.add_(value)


def device_of(name: str) -> Any:
    if name == "cuda":
        if not torch.cuda.is_available():
            sys.exit(skipped(f"torch {torch.__version__} sees no GPU"))
        if not rankloom.torch._ext.has_cuda:
            sys.exit(skipped("this bridge was built without CUDA: calls of CUDA tensors would go through memory of the host"))
        return Gpu()
    spec = importlib.util.spec_from_file_location("played_device", name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rankloom.torch._ext.set_device_driver(module.driver())
    torch.cuda.get_device_capability = lambda *_: (8, 0)  # type: ignore[assignment]  # which broadcast() asks of a tensor's device
    return module


def skipped(why: str) -> int:
    print(f"device_tensors: nothing was tested: {why}", file=sys.stderr)
    return 77


def case(body: Callable[[], None]) -> Callable[[], None]:
    CASES[body.__name__] = body
    return body


def only_played(body: Callable[[], None]) -> Callable[[], None]:
    """Of a case that asks for what a GPU does not tell."""
    return case(body) if IS_PLAYED else body


def run(body: Callable[[int], None], ranks: int = RANKS, *, fails: bool = False, seed: int | None = None) -> rankloom.torch.Report:
    os.environ.pop("RANKLOOM_SCHEDULE", None)
    if seed is None:
        os.environ["RANKLOOM_SCHEDULE"] = "free"
    report = rankloom.torch.run(body, ranks, seed=seed, timeout=60)
    if not fails:
        report.raise_if_failed()
    return report


IS_PLAYED = sys.argv[1] != "cuda"
played = device_of(sys.argv[1])


def own_stream() -> None:
    played.use_stream(played.new_stream())


def values(tensor: torch.Tensor) -> list[float]:
    """Those that the device has given it once the rank's stream is through."""
    played.synchronize()
    return played.on_host(tensor).flatten().tolist()


@only_played
def kernels_of_ours_reduce_where_the_tensors_are() -> None:
    def body(rank: int) -> None:
        own_stream()
        host = torch.arange(4.0) * (rank + 1)
        x = played.on_device(host)
        assert x.is_cuda and x.data_ptr() == host.data_ptr()
        dist.all_reduce(x)
        assert values(x) == [0, 6, 12, 18]

    before, kept = played.plans_run(), played.kept()
    run(body)
    assert played.plans_run() == before + 1
    assert played.kept() == kept, "nothing was copied aside"


@case
def a_call_begins_behind_what_its_stream_holds() -> None:
    def body(rank: int) -> None:
        own_stream()
        x = played.on_device(torch.full((2,), float(rank)))
        barrier = played.Barrier()
        played.add(x, 10)  # a kernel of the program's, which the device has not run when the call is made
        work = dist.all_reduce(x, async_op=True)
        dist.barrier()
        assert not work.is_completed()
        barrier.open()
        work.wait()
        assert values(x) == [33, 33]

    run(body)


@case
def wait_orders_the_stream_and_lets_the_thread_go_on() -> None:
    def body(rank: int) -> None:
        own_stream()
        x = played.on_device(torch.full((2,), float(rank + 1)))
        barrier = played.Barrier() if rank == 2 else None
        dist.all_reduce(x)  # returns, though the device of rank 2 has not come to the call
        played.add(x, 100)  # behind it
        dist.barrier()
        assert barrier is None or not played.idle()
        if barrier is not None:
            barrier.open()
        assert values(x) == [106, 106]

    run(body)


@case
def a_stream_goes_on_in_what_a_call_wrote() -> None:
    def body(rank: int) -> None:
        own_stream()
        x = played.on_device(torch.full((3,), float(rank + 1)))
        works = []
        barrier = played.Barrier()
        for _ in range(3):
            works.append(dist.all_reduce(x, async_op=True))
            works[-1].wait()  # though the call is not done, and its work is kept, the next one may write there
            played.add(x, 1)
        barrier.open()
        assert values(x) == [3 * (3 * (3 * 2 + 1) + 1) + 1] * 3

    run(body)


@case
def calls_that_share_a_tensor_follow_each_other() -> None:
    """As those of a group of NCCL's do, though nobody waits between them."""
    under_a_schedule = False

    def body(rank: int) -> None:
        own_stream()
        for _ in range(10):
            x, y, z = (played.on_device(torch.full((2,), float(rank + 1))) for _ in range(3))
            everything = played.on_device(torch.zeros(2 * RANKS))
            barrier = None if under_a_schedule else played.Barrier()  # there the thread waits where the stream cannot
            works = [dist.all_reduce(x, async_op=True), dist.all_gather_into_tensor(everything, x, async_op=True)]
            works += [dist.all_reduce(y, async_op=True), dist.broadcast(y, 0, async_op=True)]
            works += [dist.all_gather_into_tensor(everything, z, async_op=True), dist.all_reduce(z, async_op=True)]
            if barrier is not None:
                barrier.open()
            for work in works:
                work.wait()
            assert (values(x), values(y), values(z)) == ([6, 6], [6, 6], [6, 6])
            assert values(everything) == [1, 1, 2, 2, 3, 3]

    run(body)
    under_a_schedule = True
    run(body, seed=3)


@case
def the_default_stream_is_every_ranks_and_is_not_blocked() -> None:
    def body(rank: int) -> None:
        x = played.on_device(torch.full((2,), float(rank)))
        played.add(x, 1)
        dist.all_reduce(x)
        played.add(x, rank)
        assert values(x) == [6 + rank] * 2

    run(body)


def thread_waits(work: Any, barrier: Any) -> bool:
    """Whether it is the calling thread that work.wait() holds up until the barrier before the call is opened."""
    held = rankloom.torch._ext.current()
    assert held is not None
    job, rank = held
    over = threading.Event()

    def open_once_it_waits() -> None:
        while f"rank {rank} waits in all_reduce" not in job.describe() and not over.wait(0.001):
            pass
        barrier.open()

    opener = threading.Thread(target=open_once_it_waits)
    opener.start()
    work.wait()
    waited = bool(work.is_completed())
    over.set()
    opener.join()
    return waited


@case
def on_the_default_stream_the_thread_waits() -> None:
    """Also where no other rank has used it yet."""

    def body(rank: int) -> None:
        x = played.on_device(torch.full((2,), 3.0))
        barrier = played.Barrier()
        assert thread_waits(dist.all_reduce(x, async_op=True), barrier)
        assert values(x) == [3, 3]

    run(body, 1)


@case
def on_a_stream_of_two_ranks_the_thread_waits() -> None:
    shared = played.new_stream()

    def body(rank: int) -> None:
        played.use_stream(shared)
        x = played.on_device(torch.full((2,), float(rank)))
        barrier = played.Barrier() if rank == 1 else None
        work = dist.all_reduce(x, async_op=True)
        dist.barrier()
        if rank == 1:
            assert thread_waits(work, barrier)
        work.wait()
        assert values(x) == [3, 3]

    run(body)


@case
def under_a_schedule_the_thread_waits() -> None:
    def body(rank: int) -> None:
        own_stream()
        x = played.on_device(torch.full((2,), float(rank)))
        played.add(x, 1)
        dist.all_reduce(x)
        assert played.on_host(x).tolist() == [6, 6]

    for seed in range(5):
        run(body, seed=seed)


@case
def views_are_copied_aside_and_back_on_the_device() -> None:
    def body(rank: int) -> None:
        own_stream()
        host = torch.arange(6.0).reshape(2, 3).mul(rank + 1).t()
        x = played.on_device(host)
        assert not x.is_contiguous()
        played.add(x, 1)
        dist.all_reduce(x)
        played.add(x, 1)
        assert values(x) == [4, 22, 10, 28, 16, 34], values(x)

    run(body)


@case
def every_stream_that_waits_is_behind_the_copy_back() -> None:
    def body(rank: int) -> None:
        own_stream()
        x = played.on_device(torch.arange(6.0).reshape(2, 3).mul(rank + 1).t())
        work = dist.all_reduce(x, async_op=True)
        barrier = played.Barrier()
        work.wait()  # the copy stands behind the barrier
        own_stream()
        work.wait()
        played.add(x, 1)
        barrier.open()
        assert values(x) == [1, 19, 7, 25, 13, 31], values(x)

    run(body)


@only_played
def memory_that_is_copied_back_is_kept_for_the_stream() -> None:
    def body(rank: int) -> None:
        own_stream()
        dist.all_reduce(played.on_device(torch.zeros(3, 2).t()))

    kept = played.kept()
    run(body)
    assert played.kept() == kept + 2 * RANKS  # the caller's, and what was copied aside


@case
def gathers_and_scatters_write_on_the_device() -> None:
    def body(rank: int) -> None:
        own_stream()
        outputs = [played.on_device(torch.zeros(2)) for _ in range(RANKS)]
        dist.all_gather(outputs, played.on_device(torch.tensor([float(rank), -1.0])))
        assert [values(output) for output in outputs] == [[0, -1], [1, -1], [2, -1]]
        flat = played.on_device(torch.zeros(2 * RANKS))
        dist.all_gather_into_tensor(flat, played.on_device(torch.tensor([float(rank), 5.0])))
        assert values(flat) == [0, 5, 1, 5, 2, 5]
        mine = played.on_device(torch.zeros(1))
        dist.reduce_scatter_tensor(mine, played.on_device(torch.arange(float(RANKS)) + rank))
        assert values(mine) == [3 * rank + 3]

    run(body)


@case
def messages_go_from_device_to_device() -> None:
    def body(rank: int) -> None:
        own_stream()
        x = played.on_device(torch.full((2,), float(rank)))
        y = played.on_device(torch.zeros(2))
        played.add(x, 10)
        works = [dist.isend(x, (rank + 1) % RANKS), dist.irecv(y, (rank + 2) % RANKS)]
        for work in works:
            assert work is not None
            work.wait()
        played.add(y, 0.5)
        assert values(y) == [10.5 + (rank + 2) % RANKS] * 2

    run(body)


@case
def a_future_orders_the_streams_of_who_waits_for_it() -> None:
    def body(rank: int) -> None:
        own_stream()
        x = played.on_device(torch.full((2,), float(rank)))
        work = dist.all_reduce(x, async_op=True)
        result = work.get_future().wait()
        assert result[0].data_ptr() == x.data_ptr() and values(x) == [3, 3]
        seen: list[list[float]] = []
        again = dist.all_reduce(x, async_op=True).get_future().then(lambda future: seen.append(values(future.value()[0])))
        again.wait()
        assert seen == [[9, 9]]

    run(body)


@case
def block_current_stream_of_host_tensors_blocks_the_stream_alone() -> None:
    gate = threading.Event()

    def body(rank: int) -> None:
        own_stream()
        x = torch.full((2,), float(rank))
        y = played.on_device(torch.zeros(1))
        if rank == 2:
            assert gate.wait(30)
        work = dist.all_reduce(x, async_op=True)
        work.block_current_stream()
        played.add(y, 1)
        if rank == 0:
            assert not played.idle() and played.on_host(y).tolist() == [0]
            gate.set()
        assert values(y) == [1]
        work.wait()
        assert x.tolist() == [3, 3]

    run(body)


@case
def block_current_stream_outlives_its_work() -> None:
    """As PyTorch's test of a use after free, with works of ours: the first still blocks when the second, which is done, is gone."""
    gate = threading.Event()

    def body(rank: int) -> None:
        own_stream()
        a, b = torch.full((2,), float(rank)), torch.full((2,), float(rank))
        pair = dist.new_group(list(range(2)))
        if rank == 1:
            assert gate.wait(30)
            dist.all_reduce(a)
            return
        first = dist.all_reduce(a, async_op=True)
        first.block_current_stream()
        second = dist.all_reduce(b, group=dist.new_group([0], use_local_synchronization=True), async_op=True)
        second.block_current_stream()
        del second, pair
        assert not played.idle()
        gate.set()
        played.synchronize()
        assert first.is_completed() and a.tolist() == [1, 1]

    run(body, 2)


@case
def a_failure_reaches_a_rank_whose_stream_waits() -> None:
    entered = threading.Event()

    def body(rank: int) -> None:
        own_stream()
        if rank == 1:
            assert entered.wait(30)
            raise ValueError("rank 1 gives up")
        x = played.on_device(torch.zeros(2))
        dist.all_reduce(x)
        entered.set()
        played.synchronize()  # its wait ends with the world
        dist.barrier()

    report = run(body, 2, fails=True)
    assert "rank 1 gives up" in report.text, report.text


@case
def a_wait_with_a_timeout_is_the_threads() -> None:
    def body(rank: int) -> None:
        own_stream()
        x = played.on_device(torch.zeros(2))
        if rank == 1:
            return
        work = dist.all_reduce(x, async_op=True)
        work.wait(timedelta(seconds=0.2))

    report = run(body, 2, fails=True)
    assert "all_reduce seq 1" in report.text, report.text


@case
def a_member_on_the_host_is_named() -> None:
    def body(rank: int) -> None:
        own_stream()
        x = torch.zeros(2)
        dist.all_reduce(x if rank == 1 else played.on_device(x), async_op=True).wait(timedelta(seconds=30))

    report = run(body, 2, fails=True)
    assert "device | cuda  | 0 " in report.text and " | cpu   | 1 " in report.text, report.text


@only_played
def with_several_devices_calls_go_through_the_host() -> None:
    def body(rank: int) -> None:
        own_stream()
        x = played.on_device(torch.full((2,), float(rank)))
        played.add(x, 1)
        dist.all_reduce(x)
        played.add(x, 1)
        assert values(x) == [7, 7]

    before = played.plans_run()
    played.set_device_count(2)
    try:
        run(body)
    finally:
        played.set_device_count(1)
    assert played.plans_run() == before


def main() -> int:
    results: dict[str, str] = {}
    for name in sys.argv[2:] or CASES:
        print(name, file=sys.stderr, flush=True)  # the last one is that which does not end
        try:
            CASES[name]()
            results[name] = "ok"
        except BaseException:
            results[name] = traceback.format_exc()
    json.dump(results, sys.stdout, indent=1)
    return 0 if set(results.values()) == {"ok"} else 1


sys.exit(main())
