"""torch.compile inside rank threads."""

import pytest
import rankloom.torch
import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_function_with_collectives(backend: str, seed: int) -> None:
    torch._dynamo.reset()

    def functional(x: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    def in_place(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x * 3

    def body(rank: int) -> None:
        compiled = torch.compile(functional, backend=backend, fullgraph=True)
        for start in (1.0, 2.0):
            out = compiled(torch.full((4,), start + rank))
            assert out.tolist() == [4 * start + 3] * 4
        assert torch.compile(in_place, backend=backend)(torch.full((2,), 1.0 + rank)).tolist() == [9, 9]

    rankloom.torch.run(body, 2, seed=seed).raise_if_failed()
