"""FSDP2's parts of a parameter in a fake world: the one that its rank keeps, and not those of all the others.

FSDP2 splits each parameter into a part a rank and looks at its own and at the first. Of a group of thousands that is thousands of
tensors a parameter, and most of what it takes to shard a model.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch


class Parts(Sequence[torch.Tensor]):
    """As the list of torch.chunk(tensor, count, dim), with empty tensors behind its last part; a part is made when it is asked for."""

    def __init__(self, tensor: torch.Tensor, count: int, dim: int) -> None:
        self._tensor, self._count, self._dim = tensor, count, dim
        self._size = -(-tensor.size(dim) // count)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(f"part {index} of {self._count}")
        start = self._size * (index % self._count)
        left = self._tensor.size(self._dim) - start
        if left <= 0:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(self._size, left))


@contextlib.contextmanager
def asked_for() -> Iterator[None]:
    """FSDP2 makes the parts that it asks for, if the program has imported it by now: else it is slower, and nothing else."""
    name = "_chunk_with_empty"
    module = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_param")
    original: Callable[..., Any] | None = getattr(module, name, None)
    if original is None:  # or another version of torch
        yield
        return

    def parts(tensor: torch.Tensor, num_chunks: int, dim: int) -> Sequence[torch.Tensor]:
        if num_chunks < 1 or tensor.size(dim) == 0:
            whole: Sequence[torch.Tensor] = original(tensor, num_chunks, dim=dim)
            return whole
        return Parts(tensor, num_chunks, dim)

    setattr(module, name, parts)
    try:
        yield
    finally:
        setattr(module, name, original)
