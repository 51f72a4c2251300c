"""State that torch keeps once for all threads, and a rank means for itself.

Hooks on all modules, loss_parallel's handlers, the DistributedDataParallel whose forward runs.
"""

from __future__ import annotations

import collections
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch.nn.modules import module
from torch.nn.parallel import DistributedDataParallel

from rankloom.torch import _ext

# Of hooks that are called. Those that only hold flags of these go by the same key.
_CALLED = (
    "_global_buffer_registration_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
)


def _of_rank(hook: Callable[..., Any], owner: tuple[int, int]) -> Callable[..., Any]:
    def either(*args: Any, **kwargs: Any) -> Any:
        # A hook that gives None changes nothing, whatever its kind.
        return hook(*args, **kwargs) if _ext.acts_for() == owner else None

    either.__wrapped__ = hook  # type: ignore[attr-defined]
    return either


class _Hooks(collections.OrderedDict[int, Any]):
    """A hook that a rank registers is called on that rank only."""

    def __setitem__(self, key: int, hook: Any) -> None:
        owner = _ext.acts_for()
        super().__setitem__(key, _of_rank(hook, owner) if owner[0] >= 0 else hook)


_active: dict[tuple[int, int], Any] = {}


def _active_ddp() -> Any:
    return _active.get(_ext.acts_for())


def _set_active_ddp(ddp: Any) -> None:
    if ddp is None:
        _active.pop(_ext.acts_for(), None)
    else:
        _active[_ext.acts_for()] = ddp


@contextlib.contextmanager
def _inside_ddp_forward(self: Any) -> Iterator[None]:
    """Each rank has its own module whose forward runs, by which torch.compile splits what it compiles.

    Ranks that put back the one before theirs in an attribute of the class would leave another's behind, for good.
    """
    before = _active_ddp()
    _set_active_ddp(self)
    try:
        yield
    finally:
        _set_active_ddp(before)


class _DdpOfReplicate:
    """DistributedDataParallel as replicate() has it, which makes one and tells the class when its forward runs."""

    _active_ddp_module = property(lambda _: _active_ddp(), lambda _, ddp: _set_active_ddp(ddp))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return DistributedDataParallel(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(DistributedDataParallel, name)


def per_rank() -> None:
    """For good, and once. A table that somebody uses already stays, since those handles remove from that one."""
    for name in _CALLED:
        table = getattr(module, name)
        if not isinstance(table, _Hooks) and not table:
            setattr(module, name, _Hooks())
    ddp: Any = DistributedDataParallel
    ddp._inside_ddp_forward = _inside_ddp_forward
    ddp._get_active_ddp_module = classmethod(lambda _: _active_ddp())


_loss_mu = threading.Lock()
_loss_users = 0


class _Unwatched(set[Any]):
    """A name of each part that FSDP measures at the moment: a set of the class, in which ranks would find each other's."""

    def add(self, _element: Any) -> None:
        pass

    def remove(self, _element: Any) -> None:
        pass


def adapt() -> None:
    """Adapts to ranks the state that torch's modules keep once for a process. Of those that are imported; idempotent."""
    _count_loss_parallel()
    replicate = sys.modules.get("torch.distributed._composable.replicate")
    if replicate is not None and getattr(replicate, "DistributedDataParallel", None) is DistributedDataParallel:
        replicate.DistributedDataParallel = _DdpOfReplicate()  # type: ignore[attr-defined]
    profiler = getattr(sys.modules.get("torch.distributed.fsdp._debug_utils"), "SimpleProfiler", None)
    if profiler is not None and not isinstance(profiler.profiling, _Unwatched):
        profiler.profiling = _Unwatched()


def _count_loss_parallel() -> None:
    """loss_parallel() of several ranks: the first one that enters puts the handlers in, and the last one takes them out."""
    loss: Any = sys.modules.get("torch.distributed.tensor.parallel.loss")
    if loss is None or getattr(loss._enable_custom_loss_ops, "counts_ranks", False):
        return
    enable, disable = loss._enable_custom_loss_ops, loss._disable_custom_loss_ops

    def enter() -> None:
        global _loss_users
        with _loss_mu:
            _loss_users += 1
            if _loss_users == 1:
                enable()

    def leave() -> None:
        global _loss_users
        with _loss_mu:
            _loss_users -= 1
            if _loss_users == 0:
                disable()

    enter.counts_ranks = True  # type: ignore[attr-defined]
    loss._enable_custom_loss_ops, loss._disable_custom_loss_ops = enter, leave
