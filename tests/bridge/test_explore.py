"""explore(): a search over schedules finds what one lucky run does not."""

import re

import pytest
import rankloom.torch
import torch
import torch.distributed as dist


def _store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()


def _count(add: bool) -> int:
    """Ranks count themselves, with get and set where add is wanted."""
    store = _store()
    if dist.get_rank() == 0:
        store.set("count", "0")
    dist.barrier()
    if add:
        store.add("count", 1)
    else:
        store.set("count", str(int(store.get("count")) + 1))
    dist.barrier()
    count = int(store.get("count"))
    assert count == dist.get_world_size(), f"counted {count} ranks"
    return count


def _racy() -> int:
    return _count(add=False)


def _right() -> int:
    return _count(add=True)


def test_finds_a_lost_update_and_says_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rankloom.torch.explore(_racy, 3, runs=200, strategies=["pct"])
    assert not found.ok and found.failure is not None
    assert 2 < found.runs < 200
    assert re.match(rf"explored {found.runs} runs on 3 ranks: a schedule that fails, \w+:\d+", found.text)
    assert "AssertionError: counted" in found.text
    assert re.search(rf"RANKLOOM_SCHEDULE='?{found.failure.schedule}'? ", found.failure.rerun)
    with pytest.raises(rankloom.torch.RankFailedError, match="counted") as raised:
        found.raise_if_failed()
    assert isinstance(raised.value.__cause__, AssertionError)

    monkeypatch.setenv("RANKLOOM_SCHEDULE", found.failure.schedule)
    again = rankloom.torch.explore(_racy, 3, runs=200)
    assert again.failure is not None and again.runs == 2
    assert again.failure.trace == found.failure.trace
    fixed = rankloom.torch.explore(_right, 3, runs=200)
    assert fixed.ok and fixed.runs == 2, fixed.text


def test_the_fix_holds() -> None:
    found = rankloom.torch.explore(_right, 3, runs=30)
    found.raise_if_failed()
    assert (found.runs, found.text) == (30, "explored 30 runs on 3 ranks: no failure")


def test_compares_what_ranks_return() -> None:
    def order() -> list[int]:
        return [_store().add("place", 1)]

    found = rankloom.torch.explore(order, 2)
    assert found.failure is not None
    assert "results differ between schedules: rank 0 returned [2] here, and [1] under steered:1" in found.text
    assert "\nrun it again: " in found.text
    assert rankloom.torch.explore(order, 2, runs=10, compare=False).ok


def test_compares_tensors_bit_by_bit() -> None:
    def zero() -> torch.Tensor:
        first = _store().add("place", 1) == 1
        return torch.tensor([float("nan"), 0.0 if first or dist.get_rank() == 1 else -0.0])

    found = rankloom.torch.explore(zero, 2)
    assert found.failure is not None and "rank 0 returned tensor([nan, -0.])" in found.text

    def alike() -> tuple[torch.Tensor, dict[str, object]]:
        x = torch.full((2,), float(dist.get_rank() + 1), dtype=torch.complex64)
        dist.all_reduce(x)
        return x, {"empty": torch.empty(0), "true": torch.tensor([True]), "of its own": object()}

    rankloom.torch.explore(alike, 2, runs=8).raise_if_failed()


def test_a_missing_wait_fails_at_once() -> None:
    def early() -> float:
        x = torch.tensor([1.0])
        work = dist.all_reduce(x, async_op=True)
        seen = x.item()
        work.wait()
        assert seen == 2
        return seen

    found = rankloom.torch.explore(early, 2)
    assert found.runs == 1 and found.failure is not None and found.failure.schedule == "steered:1"


def test_a_program_that_does_not_repeat_itself_is_told() -> None:
    runs = []

    def more_each_time() -> None:
        if dist.get_rank() == 0:
            runs.append(1)
        for _ in range(len(runs)):
            _store().add("n", 1)

    found = rankloom.torch.explore(more_each_time, 2)
    assert "two runs of one schedule differ: the program is not deterministic" in found.text
    assert found.runs == 2


def test_stops_after_the_time_it_has() -> None:
    found = rankloom.torch.explore(_right, 2, runs=1_000_000, seconds=0)
    assert found.ok and found.runs == 2


def test_options_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="want at least one of each"):
        rankloom.torch.explore(_right, runs=0)
    with pytest.raises(ValueError, match="none of free, fifo"):
        rankloom.torch.explore(_right, 2, strategies=["luck"])
