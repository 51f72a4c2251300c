"""Every collective of c10d on rankloom: values, views that are not contiguous, dtypes, and errors by their text."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import rankloom.torch
import torch
import torch.distributed as dist

RANKS = 3


def on_ranks(fn: Callable[..., Any], ranks: int = RANKS, **options: Any) -> rankloom.torch.Report:
    report = rankloom.torch.run(fn, ranks, **options)
    report.raise_if_failed()
    return report


def failing(fn: Callable[..., Any], ranks: int = 2, **options: Any) -> rankloom.torch.Report:
    report = rankloom.torch.run(fn, ranks, **options)
    assert not report.ok
    return report


def test_all_reduce(seed: int | None) -> None:
    def body(rank: int) -> None:
        x = torch.arange(4.0) * (rank + 1)
        dist.all_reduce(x)
        assert torch.equal(x, torch.arange(4.0) * 6)
        y = torch.tensor([rank, -rank])
        dist.all_reduce(y, dist.ReduceOp.MAX)
        assert y.tolist() == [2, 0]
        z = torch.tensor([float(rank)])
        dist.all_reduce(z, dist.ReduceOp.AVG)
        assert z.item() == 1.0

    on_ranks(body, seed=seed)


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"parallel": True}], ids=["fifo", "seed", "parallel"])
def test_a_call_that_waits_gives_no_work(options: dict[str, Any]) -> None:
    def body(rank: int) -> None:
        wish = dist.AllreduceOptions()
        wish.asyncOp = False
        x, strided = torch.tensor([rank, 5]), torch.arange(6.0).view(3, 2)[:, rank % 2]
        group = dist.group.WORLD
        assert group is not None and group.allreduce([x], wish) is None and group.allreduce([strided], wish) is None
        assert x.tolist() == [3, 15] and strided.tolist() == [1.0, 7.0, 13.0]
        if rank == 2:
            x = torch.ones(3)
        with pytest.raises(RuntimeError, match="members issued different calls"):
            group.allreduce([x], wish)

    assert rankloom.torch.run(body, RANKS, **options).results == [None] * RANKS


def test_a_work_is_one_of_torchs() -> None:
    def body(rank: int) -> None:
        tensors = [torch.tensor([rank + added]) for added in range(3)]
        works = [dist.all_reduce(x, async_op=True) for x in tensors]
        assert all(isinstance(work, dist.Work) for work in works)
        assert works[0].wait() and works[1].wait(timedelta(seconds=9)) and works[2].wait(timeout=timedelta(seconds=9))
        assert works[2].is_completed() and [x.item() for x in tensors] == [3, 6, 9]

    on_ranks(body)


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64,
     torch.complex64, torch.complex128],
)
def test_all_reduce_dtypes(dtype: torch.dtype) -> None:
    def body(rank: int) -> None:
        x = torch.ones(5, dtype=dtype) * (rank + 1)
        dist.all_reduce(x)
        assert torch.equal(x, torch.full((5,), 6, dtype=dtype))

    on_ranks(body)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64]
)
def test_moves_of_any_dtype(dtype: torch.dtype) -> None:
    def body(rank: int) -> None:
        x = torch.tensor([rank, 1]).to(dtype)
        dist.broadcast(x, src=2)
        assert torch.equal(x.view(torch.uint8), torch.tensor([2, 1]).to(dtype).view(torch.uint8))

    on_ranks(body)


def test_broadcast_and_reduce(seed: int | None) -> None:
    def body(rank: int) -> None:
        x = torch.full((2, 2), float(rank))
        dist.broadcast(x, src=1)
        assert torch.equal(x, torch.ones(2, 2))
        y = torch.full((2,), float(rank + 1))
        dist.reduce(y, dst=2)
        assert torch.equal(y, torch.full((2,), 6.0 if rank == 2 else rank + 1.0))

    on_ranks(body, seed=seed)


def test_gathers(seed: int | None) -> None:
    def body(rank: int) -> None:
        out = [torch.empty(2) for _ in range(RANKS)]
        dist.all_gather(out, torch.full((2,), float(rank)))
        assert [t[0].item() for t in out] == [0, 1, 2]
        single = torch.empty(RANKS, 2)
        dist.all_gather_into_tensor(single, torch.full((1, 2), float(rank)))
        assert single[:, 1].tolist() == [0, 1, 2]
        at_root = [torch.empty(2) for _ in range(RANKS)] if rank == 1 else None
        dist.gather(torch.full((2,), float(rank)), at_root, dst=1)
        if at_root is not None:
            assert [t[1].item() for t in at_root] == [0, 1, 2]

    on_ranks(body, seed=seed)


def test_scatters(seed: int | None) -> None:
    def body(rank: int) -> None:
        out = torch.empty(2)
        dist.scatter(out, [torch.full((2,), float(i)) for i in range(RANKS)] if rank == 0 else None, src=0)
        assert out.tolist() == [rank, rank]
        dist.reduce_scatter(out, [torch.full((2,), float(i)) for i in range(RANKS)])
        assert out.tolist() == [rank * 3, rank * 3]
        dist.reduce_scatter_tensor(out, torch.arange(6.0))
        assert out.tolist() == [rank * 6, rank * 6 + 3]

    on_ranks(body, seed=seed)


def test_all_to_all(seed: int | None) -> None:
    def body(rank: int) -> None:
        out = [torch.empty(1) for _ in range(RANKS)]
        dist.all_to_all(out, [torch.tensor([10.0 * rank + i]) for i in range(RANKS)])
        assert [t.item() for t in out] == [rank, 10 + rank, 20 + rank]
        single = torch.empty(RANKS)
        dist.all_to_all_single(single, torch.arange(3.0) + 10 * rank)
        assert single.tolist() == [rank, 10 + rank, 20 + rank]
        rows = torch.empty((rank + 1) * RANKS, 2)
        split = [i + 1 for i in range(RANKS)]
        dist.all_to_all_single(rows, torch.full((sum(split), 2), float(rank)), [rank + 1] * RANKS, split)
        assert rows[:, 0].tolist() == [r for r in range(RANKS) for _ in range(rank + 1)]

    on_ranks(body, seed=seed)


def test_all_to_all_with_splits_of_tensors(seed: int | None) -> None:
    """Programs that route tokens to experts have the counts in tensors."""

    def body(rank: int) -> list[Any]:
        sent = torch.tensor([rank + 1 + i for i in range(RANKS)])  # rows to each rank
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent)
        mine = torch.repeat_interleave(torch.arange(RANKS), sent).view(-1, 1) + 10.0 * rank
        out = torch.empty(int(got.sum()), 1)
        dist.all_to_all_single(out, mine, list(got), list(sent))
        back = torch.empty_like(mine)
        dist.all_to_all_single(back, out, list(sent.int()), got.tolist(), async_op=True).wait()
        assert torch.equal(back, mine)
        return [got.tolist(), out.view(-1).tolist()]

    made = on_ranks(body, seed=seed).results
    for rank, (got, rows) in enumerate(made):
        assert got == [source + 1 + rank for source in range(RANKS)]
        assert rows == [10.0 * source + rank for source in range(RANKS) for _ in range(source + 1 + rank)]


def test_splits_of_tensors_that_do_not_add_up() -> None:
    def body() -> None:
        dist.all_to_all_single(torch.empty(4), torch.ones(4), list(torch.tensor([2, 2])), list(torch.tensor([3, 2])))

    assert "all_to_all_single seq 1: input_splits add up to 3 + 2, want dimension 0 of input = 4" in failing(body).text


def test_splits_that_are_one_tensor_are_refused_by_pytorch_itself() -> None:
    def body() -> str:
        with pytest.raises(TypeError) as caught:
            dist.all_to_all_single(torch.empty(4), torch.ones(4), torch.tensor([2, 2]), torch.tensor([2, 2]))
        return str(caught.value).split("\n")[0]

    text = "all_to_all_single(): incompatible function arguments. The following argument types are supported:"
    assert on_ranks(body, 2).results == [text] * 2
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # PyTorch's own
    try:
        assert body() == text
    finally:
        dist.destroy_process_group()


def test_objects_and_barrier(seed: int | None) -> None:
    def body(rank: int) -> None:
        dist.barrier()
        found: list[Any] = [None] * RANKS
        dist.all_gather_object(found, {"rank": rank})
        assert found == [{"rank": r} for r in range(RANKS)]

    on_ranks(body, seed=seed)


def test_subgroups(seed: int | None) -> None:
    def body(rank: int) -> None:
        evens = dist.new_group([0, 2])
        odd = dist.new_group([1])
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=evens if rank != 1 else odd)
        assert x.item() == (1.0 if rank == 1 else 2.0)

    on_ranks(body, seed=seed)


def test_views_that_are_not_contiguous() -> None:
    def body(rank: int) -> None:
        whole = torch.zeros(4, 6)
        part = whole[:, ::2]
        part.copy_(torch.arange(12.0).view(4, 3) * (rank + 1))
        dist.all_reduce(part)
        assert torch.equal(part, torch.arange(12.0).view(4, 3) * 6)
        assert torch.equal(whole[:, 1::2], torch.zeros(4, 3))
        turned = torch.arange(6.0).view(2, 3).t() + rank
        work = dist.broadcast(turned, src=2, async_op=True)
        (result,) = work.get_future().wait()
        assert torch.equal(turned, torch.arange(6.0).view(2, 3).t() + 2)
        assert result.data_ptr() == turned.data_ptr()

    on_ranks(body)


def test_a_poll_that_finds_a_call_done_has_written_its_output(seed: int | None) -> None:
    def body(rank: int) -> list[Any]:
        x = torch.arange(6.0).view(2, 3).t() * (rank + 1)
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            pass
        return x.tolist()  # type: ignore[no-any-return]

    assert on_ranks(body, seed=seed).results == [[[0, 18], [6, 24], [12, 30]]] * RANKS


def test_a_result_is_waited_for(seed: int | None) -> None:
    def body(rank: int) -> list[Any]:
        x = torch.arange(6.0).view(2, 3).t() * (rank + 1)
        [result] = dist.all_reduce(x, async_op=True).result()
        assert result.data_ptr() == x.data_ptr()
        return x.tolist()  # type: ignore[no-any-return]

    assert on_ranks(body, seed=seed).results == [[[0, 18], [6, 24], [12, 30]]] * RANKS


def test_sparse_all_reduce() -> None:
    def body(rank: int) -> None:
        x = torch.sparse_coo_tensor([[rank, 0]], [1.0, 2.0], (4,))
        dist.all_reduce(x)
        assert torch.equal(x.to_dense(), torch.tensor([7.0, 1.0, 1.0, 0.0]))

    on_ranks(body)


def test_sparse_tensors_of_other_sizes_are_told() -> None:
    def body(rank: int) -> None:
        with pytest.raises(RuntimeError, match=r"all_reduce of a sparse tensor: rank \d has sizes \[\d\], rank \d has \[\d\]"):
            dist.all_reduce(torch.sparse_coo_tensor([[rank]], [1.0], (4 + rank,)))
        with pytest.raises(RuntimeError, match=r"rank \d has \d sparse dimensions, rank \d has \d"):
            dist.all_reduce(torch.sparse_coo_tensor([[0]] * (1 + rank % 2), torch.ones(1, *[3] * (1 - rank % 2)), (3, 3)))

    on_ranks(body)


# The bits of the memory are not the tensor's numbers.
def test_a_negated_view() -> None:
    def body(rank: int) -> None:
        x = torch._neg_view(torch.arange(1.0, 3.0)) if rank == 0 else torch.zeros(2)
        assert rank > 0 or x.is_neg()
        dist.broadcast(x, 0)
        assert x.tolist() == [-1, -2]

    on_ranks(body)


def test_an_output_whose_elements_share_memory_is_refused() -> None:
    def body(rank: int) -> None:
        wide = torch.zeros(1).expand(4)
        with pytest.raises(
            RuntimeError, match=r"^broadcast: an output has sizes \[4\] and strides \[0\], want no element of it twice in memory"
        ):
            dist.broadcast(wide, 0)
        part = torch.zeros(12)
        dist.all_gather_into_tensor(part, torch.tensor([float(rank)]).expand(4))  # an input may
        assert part.tolist() == [0.0] * 4 + [1.0] * 4 + [2.0] * 4

    on_ranks(body)


@pytest.mark.parametrize(("factor", "result"), [(2.0, 12.0), (torch.tensor([2.5]), 15.0)], ids=["number", "tensor"])
def test_a_sum_with_a_factor(factor: Any, result: float) -> None:
    def body(rank: int) -> float:
        x = torch.tensor([1.0 + rank])
        dist.all_reduce(x, dist._make_nccl_premul_sum(factor))
        return x.item()

    assert on_ranks(body).results == [result] * RANKS


@pytest.mark.parametrize(("op", "result"), [("BAND", 0b1000), ("BOR", 0b1111), ("BXOR", 0b1011)])
def test_all_reduce_of_bits(op: str, result: int) -> None:
    def body(rank: int) -> int:
        x = torch.tensor([(0b1100, 0b1010, 0b1101)[rank]])
        dist.all_reduce(x, getattr(dist.ReduceOp, op))
        return int(x.item())

    assert on_ranks(body).results == [result] * RANKS


def test_works_and_futures(seed: int | None) -> None:
    def body(rank: int) -> None:
        x = torch.ones(2)
        work = dist.all_reduce(x, async_op=True)
        assert work.wait()
        assert work.is_completed() and work.is_success() and work.exception() is None
        y = torch.full((2,), float(rank))
        tripled = dist.all_reduce(y, async_op=True).get_future().then(lambda f: f.value()[0] * 3)
        assert tripled.wait().tolist() == [9, 9]

    on_ranks(body, seed=seed)


def test_a_callback_sees_its_ranks_groups(seed: int | None) -> None:
    def body(rank: int) -> None:
        def again(future: Any) -> torch.Tensor:
            assert dist.get_rank() == rank
            return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]  # type: ignore[no-any-return]

        x = torch.ones(1)
        assert dist.all_reduce(x, async_op=True).get_future().then(again).wait().item() == 9

    on_ranks(body, seed=seed)


def test_members_that_disagree() -> None:
    def body(rank: int) -> None:
        dist.all_reduce(torch.ones(3 if rank == 0 else 4))

    report = failing(body)
    assert "Mismatch" in report.text
    assert "3" in report.text and "4" in report.text
    for error in report.exceptions:
        assert isinstance(error, dist.DistBackendError)
        assert "test_collectives.py" in str(error)


def test_a_wrong_shape() -> None:
    def body() -> None:
        dist.all_gather_into_tensor(torch.empty(5), torch.ones(2))

    report = failing(body)
    assert "all_gather_into_tensor seq 1: output has 5 elements, want size * input = 2 * 2 = 4" in report.text


def test_a_dtype_without_arithmetic() -> None:
    def body() -> None:
        dist.all_reduce(torch.ones(2).to(torch.uint16))

    report = failing(body)
    assert "all_reduce: a tensor has dtype UInt16, want Half, BFloat16" in report.text


def test_a_rank_that_raises_frees_the_others(seed: int | None) -> None:
    def body(rank: int) -> None:
        if rank == 1:
            raise ValueError("no such thing")
        dist.barrier()

    report = failing(body, seed=seed)
    assert report.first_failed == 1
    assert report.outcomes[0][0] == "stopped"
    assert "ValueError: no such thing" in report.text
    if seed is not None:
        assert report.schedule == f"seeded:{seed}"
        assert f"RANKLOOM_SEED={seed}" in report.rerun


def test_a_rank_that_never_calls_is_a_deadlock(seed: int | None) -> None:
    def body(rank: int) -> None:
        if rank == 0:
            dist.all_reduce(torch.ones(1))

    report = failing(body, seed=seed)
    assert "rank 0 waits in all_reduce seq 1 for rank 1 (returned)" in report.text
    assert "Python stack of rank 0:" in report.text
    assert "test_collectives.py" in report.text
    assert "in body: dist.all_reduce(torch.ones(1))" in report.text


def test_two_worlds_one_after_the_other(seed: int | None) -> None:
    for _ in range(3):
        on_ranks(lambda: dist.all_reduce(torch.ones(1)), seed=seed)


def test_the_same_seed_gives_the_same_run() -> None:
    def body(rank: int) -> None:
        for _ in range(3):
            dist.all_reduce(torch.ones(1))
            rankloom.torch.yield_now()

    first, second = on_ranks(body, seed=5), on_ranks(body, seed=5)
    assert first.trace and first.trace == second.trace
    assert on_ranks(body, seed=6).trace != first.trace
