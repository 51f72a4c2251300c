"""Futures of torch's under a schedule: they complete at a step of their own, and a rank that waits for one is seen to wait."""

from datetime import timedelta
from typing import Any

import pytest
import rankloom.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

SEEDS = range(20)


def orders(program: Any, ranks: int = 2) -> set[str]:
    """All that the ranks return under the seeds; the same seed gives the same."""
    found = set()
    for seed in SEEDS:
        reports = [rankloom.torch.run(program, ranks, seed=seed) for _ in range(2)]
        for report in reports:
            report.raise_if_failed()
        assert reports[0].results == reports[1].results, seed
        found.update(reports[0].results)
    return found


def test_a_callback_has_its_own_step() -> None:
    def program() -> str:
        steps: list[str] = []
        future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        then = future.then(lambda _: steps.append("then"))
        steps.append("issued")
        dist.barrier()
        steps.append("barrier")
        then.wait()
        steps.append("waited")
        return ", ".join(steps)

    found = orders(program)
    # The call may be done when something is chained to its future, which runs at once then.
    assert found == {f"{steps}, waited" for steps in ("then, issued, barrier", "issued, then, barrier", "issued, barrier, then")}


@pytest.mark.parametrize("chain", ["then", "add_done_callback"])
def test_a_search_sees_that_what_is_chained_to_a_future_may_run_at_once(chain: str) -> None:
    """The call may be done by then, on whichever rank the others have overtaken."""

    def program(rank: int) -> list[str]:
        steps: list[str] = []
        work = dist.all_reduce(torch.ones(1), async_op=True)
        future = work.get_future()
        getattr(future, chain)(lambda _: steps.append("then"))
        steps.append("issued")
        work.wait()
        return steps

    found = rankloom.torch.explore(program, 2)
    assert not found.ok and not found.verified, found.text
    assert "return value" in found.text, found.text


def test_calls_overlap_through_futures() -> None:
    """The second call is issued before the first is done, and they may end in either order."""

    def program(rank: int) -> str:
        ended: list[str] = []
        groups = [dist.new_group(), dist.new_group()]
        futures = [
            dist.all_reduce(torch.ones(1), group=group, async_op=True).get_future().then(lambda _, n=n: ended.append(n))
            for n, group in zip(("first", "second"), groups, strict=True)
        ]
        issued = len(ended)
        torch.futures.collect_all(futures).wait()
        return f"{issued} at issue; {', '.join(ended)}"

    found = orders(program)
    assert {"0 at issue; first, second", "0 at issue; second, first"} <= found


def test_a_wait_that_is_missing_is_found() -> None:
    def program(waits: bool) -> list[float]:
        seen: list[float] = []
        x = torch.ones(1)
        future = dist.all_reduce(x, async_op=True).get_future().then(lambda f: seen.append(f.value()[0].item()))
        dist.barrier()
        if waits:
            future.wait()
        return list(seen)

    found = rankloom.torch.explore(lambda: program(False), 2)
    assert not found.ok and "return value" in found.text, found.text
    found = rankloom.torch.explore(lambda: program(True), 2)
    assert found.ok and found.verified, found.text


def test_a_value_that_is_not_there_yet_is_found() -> None:
    def program() -> float:
        future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        dist.barrier()
        return future.value()[0].item()  # type: ignore[no-any-return]

    found = rankloom.torch.explore(program, 2, strategies=["exhaustive"])
    assert found.failure is not None
    assert "is complete" in found.text or "completed" in found.text, found.text


def test_asking_whether_it_is_done_lets_others_run(seed: int | None) -> None:
    def program() -> float:
        future = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda f: f.value()[0] * 2)
        while not future.done():
            pass
        return future.value().item()  # type: ignore[no-any-return]

    report = rankloom.torch.run(program, 3, seed=seed)
    report.raise_if_failed()
    assert report.results == [6.0] * 3


def test_what_a_future_is_waited_for_is_told() -> None:
    def program(rank: int) -> None:
        if rank == 0:
            dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda f: f.value()).wait()

    report = rankloom.torch.run(program, 2, seed=7)
    assert "rank 0 waits in all_reduce seq 1 for rank 1" in report.text, report.text


def test_a_future_that_nobody_completes() -> None:
    def program(rank: int) -> None:
        if rank == 0:
            torch.futures.Future().wait()  # type: ignore[var-annotated]

    report = rankloom.torch.run(program, 2, seed=7)
    assert "Deadlock" in report.text and "rank 0 waits in future" in report.text, report.text


def test_a_future_has_the_calls_timeout() -> None:
    def program(rank: int) -> str:
        if rank == 1:
            rankloom_sleep()
            return ""
        with pytest.raises(dist.DistBackendError, match="Timeout"):
            dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
        return "timed out"

    def rankloom_sleep() -> None:
        store = dist.distributed_c10d._get_default_store()
        with pytest.raises(dist.DistStoreError):
            store.wait(["never"], timedelta(seconds=60))

    report = rankloom.torch.run(program, 2, seed=7, timeout=5)
    assert report.results[0] == "timed out", report.text


@pytest.mark.parametrize("chained", [False, True])
def test_a_future_of_ranks_that_run_at_once_ends_with_its_call(chained: bool) -> None:
    def program(rank: int) -> None:
        if rank == 0:
            future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
            (future.then(lambda done: done.value()) if chained else future).wait()

    report = rankloom.torch.run(program, 2, parallel=True, timeout=30)
    assert "Deadlock" in report.text and "rank 0 waits in all_reduce seq 1" in report.text, report.text


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"parallel": True}])
@pytest.mark.parametrize("wait", ["wait_all", "collect_all", "then"])
def test_futures_of_several_calls_end_with_these(wait: str, options: dict[str, Any]) -> None:
    def program(rank: int) -> Any:
        calls = [dist.all_reduce(torch.tensor([10.0**rank]), async_op=True)]
        if rank == 0 or complete:
            calls.append(dist.all_reduce(torch.tensor([2 * 10.0**rank]), async_op=True))
        futures = [call.get_future() for call in calls]
        if wait == "wait_all":
            return [value[0].item() for value in torch.futures.wait_all(futures)]
        both = torch.futures.collect_all(futures)
        if wait == "then":
            both = both.then(lambda done: done.value())
        return [future.value()[0].item() for future in both.wait()]

    complete = True
    report = rankloom.torch.run(program, 2, timeout=30, **options)
    report.raise_if_failed()
    assert report.results == [[11, 22]] * 2
    complete = False
    report = rankloom.torch.run(program, 2, timeout=30, **options)
    assert report.text.startswith("Deadlock: no rank can move\n") and "rank 0 waits in all_reduce seq 2" in report.text, report.text


def test_futures_of_several_calls_are_verified() -> None:
    def program(rank: int) -> list[float]:
        future = dist.all_reduce(torch.tensor([10.0**rank]), async_op=True).get_future()
        torch.futures.collect_all([future]).then(lambda done: done.value()[0].value()).wait()
        return [value[0].item() for value in torch.futures.wait_all([future])]

    found = rankloom.torch.explore(program, 2)
    assert found.verified, found.summary

    def hidden(rank: int) -> None:
        other: torch.futures.Future[Any] = torch.futures.Future()
        other.set_result(None)
        torch.futures.wait_all([other, dist.barrier(async_op=True).get_future()])

    found = rankloom.torch.explore(hidden, 2, strategies=["exhaustive"])
    assert found.ok and "not verified because of: futures of torch that are not of a call" in found.summary


def test_a_search_says_what_of_callbacks_it_cannot_see() -> None:
    def chained(rank: int) -> None:
        future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        future.then(lambda done: done.value())
        future.wait()  # of what is chained to it nothing is promised

    def asked_twice(rank: int) -> None:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        work.get_future().then(lambda done: done.value())
        work.get_future().wait()  # the same one

    for program in (chained, asked_twice):
        found = rankloom.torch.explore(program, 2)
        assert found.ok and "not verified because of: wait() of a future to which more is chained" in found.summary, found.summary

    def of_the_chain(rank: int) -> None:
        dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda done: done.value()).wait()

    assert rankloom.torch.explore(of_the_chain, 2).verified

    def twice(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        def again(done: Any) -> torch.Tensor:
            dist.all_reduce(done.value()[0])
            return done.value()[0]  # type: ignore[no-any-return]

        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(again)

    found = rankloom.torch.explore(lambda rank: gradients(wrapped(twice), rank), 2, runs=50, strategies=["exhaustive"])
    assert found.ok and not found.verified
    told = "calls of what is chained to a future in a backward pass: with gloo they may come later"
    assert any(told in share.unseen for share in found.shares), found.text


def test_a_backward_pass_of_ranks_that_run_at_once_ends_with_its_calls() -> None:
    def program(rank: int) -> None:
        ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        if rank == 0:
            ddp(torch.ones(1, 2)).sum().backward()

    report = rankloom.torch.run(program, 2, parallel=True, timeout=30)
    assert "Deadlock" in report.text and "rank 0 waits in all_reduce" in report.text, report.text


def test_a_backward_pass_of_ranks_that_run_at_once_waits_for_no_future_of_a_hook() -> None:
    def program(rank: int) -> float:
        weight = nn.Parameter(torch.ones(1))
        futures = []
        weight.register_post_accumulate_grad_hook(
            lambda p: futures.append(dist.all_reduce(p.grad, async_op=True).get_future())  # type: ignore[arg-type]
        )
        loss = weight * (rank + 2.0)
        if rank == 0:
            loss.backward()
            dist.send(torch.ones(1), 1)
        else:
            dist.recv(torch.ones(1), 0)
            loss.backward()
        futures[0].wait()
        assert weight.grad is not None
        return weight.grad.item()

    report = rankloom.torch.run(program, 2, parallel=True)
    assert report.results == [5.0, 5.0], report.text


@pytest.mark.parametrize("hook", [False, True])
def test_a_rank_that_has_joined_does_not_outlast_a_deadlock(hook: bool) -> None:
    def program(rank: int) -> None:
        ddp = DistributedDataParallel(nn.Linear(2, 2))
        if hook:
            ddp.register_comm_hook(None, lambda _, bucket: dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(
                lambda done: done.value()[0]))  # fmt: skip
        with ddp.join():
            if rank == 1:
                ddp(torch.ones(1, 2))
                dist.recv(torch.ones(1), 0)

    for gear in ({"parallel": True}, {"seed": 3}):
        report = rankloom.torch.run(program, 2, timeout=30, stall=20, **gear)  # type: ignore[arg-type]
        assert "Deadlock" in report.text and "rank 1 waits in recv" in report.text, (gear, report.text)


def test_an_exception_of_a_callback() -> None:
    def program() -> None:
        def fails(future: Any) -> None:
            raise ZeroDivisionError("in a callback")

        future = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(fails)
        with pytest.raises(RuntimeError, match="ZeroDivisionError: in a callback"):
            future.wait()

    for seed in range(5):
        rankloom.torch.run(program, 2, seed=seed).raise_if_failed()


def test_a_rank_that_fails_while_another_waits_for_a_future() -> None:
    def program(rank: int) -> None:
        if rank == 1:
            raise ValueError("mine")
        dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()

    for seed in range(5):
        report = rankloom.torch.run(program, 2, seed=seed)
        assert report.first_failed == 1 and report.outcomes[0][0] == "stopped", report.text


# The results are those of c10d's WorkResult: SUCCESS is 0, TIMEOUT 1 and COMM_ERROR 2.
def test_a_future_result_of_a_call_that_is_done(seed: int | None) -> None:
    def program(rank: int) -> tuple[int, list[float]]:
        x = torch.zeros(2, 2)[:, rank]
        x.fill_(rank + 1)
        result = dist.all_reduce(x, async_op=True).get_future_result().wait()
        return result, x.tolist()

    report = rankloom.torch.run(program, 2, seed=seed)
    assert report.results == [(0, [3.0, 3.0])] * 2, report.text


def test_a_future_result_of_a_call_that_times_out() -> None:
    def program(rank: int) -> int:
        if rank == 1:
            with pytest.raises(dist.DistStoreError):
                dist.distributed_c10d._get_default_store().wait(["never"], timedelta(seconds=12 * timeout))
            return -1
        return dist.all_reduce(torch.ones(1), async_op=True).get_future_result().wait()  # type: ignore[no-any-return]

    timeout = 5.0
    for seed in (None, *range(5)):
        report = rankloom.torch.run(program, 2, seed=seed, timeout=timeout)
        assert report.results == [1, -1], report.text
    timeout = 0.2
    report = rankloom.torch.run(program, 2, parallel=True, timeout=timeout)
    assert report.results == [1, -1], report.text


def test_a_future_result_of_a_call_that_is_aborted(seed: int | None) -> None:
    def program(rank: int) -> int:
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["called"])
            dist.group.WORLD._get_backend(torch.device("cpu")).abort()  # type: ignore[union-attr]
            return -1
        work = dist.all_reduce(torch.ones(1), async_op=True)
        store.set("called", "")
        return work.get_future_result().wait()  # type: ignore[no-any-return]

    report = rankloom.torch.run(program, 2, seed=seed)
    assert report.results == [2, -1], report.text


@pytest.mark.parametrize("name", ["get_future", "get_future_result"])
def test_a_future_of_an_output_that_cannot_be_written_has_torchs_error(name: str, seed: int | None) -> None:
    def program(rank: int) -> None:
        x = torch.full((3, 2), rank + 1.0).t()  # its result is copied into it
        work = dist.all_reduce(x, async_op=True)
        if rank == 0:
            x.resize_(7)
            text = r"^The size of tensor a \(7\) must match the size of tensor b \(3\)"
            with pytest.raises(RuntimeError, match=text):
                getattr(work, name)().wait()
        else:
            getattr(work, name)().wait()
            assert x.tolist() == [[3.0] * 3] * 2

    rankloom.torch.run(program, 2, seed=seed).raise_if_failed()


def layers() -> nn.Module:
    """The same on all ranks, also where they share a random state."""
    net = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)])
    with torch.no_grad():
        for number, parameter in enumerate(net.parameters()):
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter) * (number + 1) / 8)
    return net


def wrapped(hook: Any = None) -> Any:
    ddp = DistributedDataParallel(layers(), bucket_cap_mb=0.0003)
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    return ddp


def gradients(ddp: Any, rank: int) -> list[torch.Tensor]:
    for _ in range(2):  # buckets are made anew after the first pass
        ddp.zero_grad()
        ddp(torch.full((2, 8), rank + 1.0)).sum().backward()
    return [parameter.grad.clone() for parameter in ddp.parameters()]


def mean_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda f: f.value()[0])


def test_ddps_buckets_overlap() -> None:
    """Under some seed a rank is through its backward pass, with a call on its way for each layer, before the other begins."""

    def events_of(seed: int | None) -> list[str]:
        events: list[str] = []

        def program(rank: int) -> None:
            ddp = wrapped()
            for step in range(2):  # buckets are made anew after the first pass
                loss = ddp(torch.full((2, 8), rank + 1.0)).sum()
                if step == 1:
                    events.append(f"{rank} begins")
                    ddp.module[0].weight.register_hook(lambda _: events.append(f"{rank} is at the first layer"))
                loss.backward()

        rankloom.torch.run(program, 2, seed=seed).raise_if_failed()
        return events

    def overlaps(events: list[str]) -> bool:
        return "is at the first layer" in events[1]

    assert sorted(events_of(None))[::2] == ["0 begins", "1 begins"]
    assert any(overlaps(events_of(seed)) for seed in range(200))
    assert not overlaps(events_of(None))  # one after the other, where calls complete at once


@pytest.mark.parametrize("hook", [None, mean_hook])
def test_a_static_graph_has_the_gradients_of_any_other(hook: Any) -> None:
    """The first backward pass reduces at its end, where torch waits in C++ for all that it has issued."""

    def program(rank: int) -> list[torch.Tensor]:
        ddp = DistributedDataParallel(layers(), bucket_cap_mb=0.0003, static_graph=True)
        if hook is not None:
            ddp.register_comm_hook(None, hook)
        return gradients(ddp, rank)

    expected = rankloom.torch.run(lambda rank: gradients(wrapped(hook), rank), 2).results[0]
    gears: list[dict[str, Any]] = [{}, {"parallel": True}, *({"seed": seed} for seed in range(6))]
    for gear in gears:
        report = rankloom.torch.run(program, 2, stall=10, **gear)
        report.raise_if_failed()
        for found in report.results:
            torch.testing.assert_close(found, expected)
    rankloom.torch.explore(program, 2, runs=20, stall=10).raise_if_failed()


@pytest.mark.parametrize("gear", [{}, {"seed": 1}, {"seed": 2}, {"parallel": True}])
def test_a_static_graph_within_another_backward_pass(gear: dict[str, Any]) -> None:
    """Its passes end within a node of the outer one."""

    def program(rank: int) -> list[torch.Tensor]:
        ddp = DistributedDataParallel(layers(), bucket_cap_mb=0.0003, static_graph=True)
        for _ in range(2):
            ddp.zero_grad()
            x = torch.full((2, 8), rank + 1.0, requires_grad=True)
            checkpoint(ddp, x, use_reentrant=True).sum().backward()
        return [parameter.grad.clone() for parameter in ddp.parameters()]

    expected = rankloom.torch.run(lambda rank: gradients(wrapped(), rank), 2).results[0]
    report = rankloom.torch.run(program, 2, stall=10, **gear)
    report.raise_if_failed()
    for found in report.results:
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("hook", [None, mean_hook])
def test_gradients_are_those_without_a_schedule(hook: Any) -> None:
    expected = rankloom.torch.run(lambda rank: gradients(wrapped(hook), rank), 2, parallel=True).results[0]
    for seed in range(6):
        report = rankloom.torch.run(lambda rank: gradients(wrapped(hook), rank), 2, seed=seed)
        report.raise_if_failed()
        for found in report.results:
            torch.testing.assert_close(found, expected)


def test_a_hook_that_does_not_wait_is_found() -> None:
    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        dist.all_reduce(bucket.buffer(), async_op=True)
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def program(rank: int) -> bool:
        return bool(torch.isfinite(torch.cat([one.flatten() for one in gradients(wrapped(hook), rank)])).all())

    finite = [rankloom.torch.run(program, 2, seed=seed).results for seed in range(6)]
    assert any(False in results for results in finite), finite


@pytest.mark.parametrize("seed", [None, *range(6)])
def test_a_hook_whose_callback_waits(seed: int | None) -> None:
    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        def again(future: Any) -> torch.Tensor:
            return dist.all_reduce(future.value()[0].div_(2), async_op=True).get_future().wait()[0]  # type: ignore[no-any-return]

        return dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future().then(again)

    results = rankloom.torch.run(lambda rank: gradients(wrapped(hook), rank), 2, seed=seed)
    results.raise_if_failed()
    plain = rankloom.torch.run(lambda rank: gradients(wrapped(), rank), 2, seed=seed)
    torch.testing.assert_close(results.results[0], plain.results[0])


def test_callbacks_that_call_the_group_come_in_the_order_of_the_calls(seed: int | None) -> None:
    def program(rank: int) -> list[float]:
        def again(future: Any) -> float:
            return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0].item()  # type: ignore[no-any-return]

        works = [dist.all_reduce(torch.full((n + 1,), n + 1.0)[:1], async_op=True) for n in range(3)]
        futures = [work.get_future().then(again) for work in works]
        return [future.wait() for future in reversed(futures)]

    report = rankloom.torch.run(program, 2, seed=seed)
    report.raise_if_failed()
    assert report.results == [[12.0, 8.0, 4.0]] * 2
