"""The backends' names: our own, and PyTorch's when they are put behind ours."""

from __future__ import annotations

import contextlib
import sys
import unittest
import warnings
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

# PyTorch's own test backends register their names when they are imported: before ours, or they would take them back.
from torch.testing._internal.distributed import fake_pg, multi_threaded_pg

from rankloom.torch import _ext, _hooks, _names, _ranks, _stores
from rankloom.torch._run import last_report
from rankloom.torch._stores import FakeStore, HashStore

__all__ = ["FakeStore", "HashStore", "install", "installed", "uninstall"]

_DEVICES = ["cpu", "cuda"]
_DEFAULT_TIMEOUT = timedelta(minutes=30)


def _make(name: str, options: Any) -> Any:
    with contextlib.nullcontext() if options.global_ranks_in_group else _stores.default_group():
        backend = _ext.make_backend(
            options.store,
            options.group_rank,
            options.group_size,
            options.timeout,
            name,
            options.group_id,
            list(options.global_ranks_in_group),
        )
    current = _ext.current()
    if current is not None:
        _ranks.keep_world(*current)
        _hooks.adapt()
    return backend


def _make_rankloom(options: Any, backend_options: Any) -> Any:
    return _make(_names.asked() or "rankloom", options)


def _make_threaded(options: Any, backend_options: Any) -> Any:
    return _make("threaded", options)


def _make_fake_named(name: str, options: Any, backend_options: Any) -> Any:
    return _ext.make_fake_backend(
        options.group_rank,
        options.group_size,
        name,
        bool(getattr(backend_options, "error_on_collective", False)),
        options.timeout or _DEFAULT_TIMEOUT,
        *_names.fake_group_arguments(options),
    )


def _make_rankloom_fake(options: Any, backend_options: Any) -> Any:
    return _make_fake_named("rankloom_fake", options, backend_options)


def _make_fake(options: Any, backend_options: Any) -> Any:
    return _make_fake_named("fake", options, backend_options)


def _exception_handle(cls: Any, exc: BaseException) -> None:
    current = _ext.current()
    if current is None:
        _originals["exception_handle"](exc)
        return
    job, rank = current
    if isinstance(exc, unittest.SkipTest):
        job.skip(str(exc))
    elif isinstance(exc, SystemExit):
        job.skip(f"rank {rank} left with exit code {exc.code}")
    else:
        job.fail(rank, _ranks.failure_text(exc))


def _reset(cls: Any) -> None:
    _originals["reset"]()
    _fold_failures()


def _fold_failures() -> None:
    """Of what the ranks of PyTorch's MultiThreadedTestCase raised: without those that only left because another failed."""
    common: Any = sys.modules.get("torch.testing._internal.common_distributed")
    report = last_report()
    if common is None or report is None:
        return
    failures, raised = common.MultiThreadedTestCase.exception_queue, []
    while not failures.empty():
        rank, info = failures.get()
        raised.append((rank, _ranks.as_exception(info)))
    outcomes = report.outcomes
    told = [one for one in raised if one[0] >= len(outcomes) or outcomes[one[0]][0] != "stopped"] or raised
    told.sort(key=lambda one: one[0] != report.first_failed)
    if told is not raised and len(told) < len(raised) and hasattr(told[0][1][1], "add_note"):
        told[0][1][1].add_note(report.text)
    for one in told:
        failures.put(one)


_originals: dict[str, Any] = {}
_patched: list[tuple[Any, str, Any]] = []
_plugins: dict[str, Any] = {}
_also: list[tuple[str, ...]] = []


def _patch(owner: Any, name: str, value: Any) -> None:
    _patched.append((owner, name, owner.__dict__[name]))
    setattr(owner, name, value)


def installed() -> bool:
    return bool(_plugins)


def install(*also: str) -> None:
    """Puts rankloom behind "threaded" and "fake", until uninstall(). A second call does nothing but add to `also`.

    also: names of built-in backends, such as "gloo" and "nccl", that are answered by rankloom as well. While run() or a test
        class of rankloom.torch.testing runs ranks, all of them are.
    """
    if not installed():
        backends = dist.Backend._plugins
        for name, creator in (("THREADED", _make_threaded), ("FAKE", _make_fake)):
            _plugins[name] = backends[name]
            backends[name] = dist.Backend._BackendPlugin(creator, True)
        group = multi_threaded_pg.ProcessLocalGroup
        _originals["exception_handle"] = group.exception_handle
        _originals["reset"] = group.reset
        _patch(group, "exception_handle", classmethod(_exception_handle))
        _patch(group, "reset", classmethod(_reset))
        _patch(multi_threaded_pg.ThreadLocalWorld, "_get_world", _ranks._get_world)
        _patch(fake_pg, "FakeStore", FakeStore)
        _stores.enter()
    if also:
        _names.enter(also)
        _also.append(also)


def uninstall() -> None:
    """Undoes install()."""
    if installed():
        _stores.leave()
    dist.Backend._plugins.update(_plugins)
    _plugins.clear()
    for owner, name, value in reversed(_patched):
        setattr(owner, name, value)
    _patched.clear()
    _originals.clear()
    for names in _also:
        _names.leave(names)
    _also.clear()


def _register() -> None:
    original = distributed_c10d._create_process_group_wrapper

    # TORCH_DISTRIBUTED_DEBUG=DETAIL compares calls over a second group: for a group of ours one of ours, not gloo's sockets.
    def wrapper(wrapped_pg: Any, *args: Any, **kwargs: Any) -> Any:
        checker = _ext.make_checker(wrapped_pg)
        if checker is None:
            return original(wrapped_pg, *args, **kwargs)
        return distributed_c10d._ProcessGroupWrapper(wrapped_pg, checker)

    distributed_c10d._create_process_group_wrapper = wrapper
    for name, creator in (("rankloom", _make_rankloom), ("rankloom_fake", _make_rankloom_fake)):
        with warnings.catch_warnings(), contextlib.suppress(AttributeError):
            warnings.simplefilter("ignore")
            dist.Backend.register_backend(name, creator, extended_api=True, devices=_DEVICES)


_register()
assert sys.modules["torch.testing._internal.distributed.multi_threaded_pg"] is multi_threaded_pg
