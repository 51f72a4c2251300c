"""Which module of a model makes a call, by its path: "layers.3.attention.wo"."""

from __future__ import annotations

import bisect
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import graph
from torch.fx import _symbolic_trace

# The names by which wrappers call the module that they wrap: no part of a name.
_WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")

_ENGINE: types.CodeType = graph._engine_run_backward.__code__
_FSDP = os.path.join(os.path.dirname(torch.__file__), "distributed", "fsdp", "_fully_shard", "_fsdp_param_group.py")


class ModuleNames:
    """Names modules below the first one that is called, the root, and tells which of them calls at the moment.

    In forward it is the module that runs, its hooks included. In backward it is the one that ran when the node was made that
    runs now. FSDP2's gathers and scatters are those of the module that they are for. Thread-safety: all methods.
    """

    def __init__(self) -> None:
        self._names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._local = threading.local()
        self._mu = threading.Lock()
        # Calls of modules, in the order of their begin: autograd's sequence numbers, and the call around each.
        self._begins: list[int] = []
        self._ends: list[int | None] = []
        self._callers: list[str] = []
        self._around: list[int] = []
        self._original: Any = None
        self._patched: Any = None
        self._on_root: Callable[[], None] | None = None

    def open(self, on_root: Callable[[], None] | None) -> None:
        """on_root: called where a module is that no other module calls; None: nothing is."""
        self._on_root = on_root
        self._original = original = torch.nn.Module.__call__

        # Not by hooks: those of a module run after the global ones, and their calls would be told as its parent's.
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._patched is None:
                return original(module, *args, **kwargs)
            entered = self._enter(module)
            try:
                return original(module, *args, **kwargs)
            finally:
                self._leave(entered)

        self._patched = call
        torch.nn.Module.__call__ = call  # type: ignore[method-assign]
        if getattr(_symbolic_trace, "_orig_module_call", None) is original:  # what make_fx() has modules called by
            _symbolic_trace._orig_module_call = call

    def close(self) -> None:
        if torch.nn.Module.__call__ is self._patched:
            torch.nn.Module.__call__ = self._original  # type: ignore[method-assign]
        if getattr(_symbolic_trace, "_orig_module_call", None) is self._patched:
            _symbolic_trace._orig_module_call = self._original
        self._patched = self._on_root = None

    def current(self) -> str:
        """Empty if no module calls."""
        frame = sys._getframe(0).f_back
        call = self._patched.__code__ if self._patched is not None else None
        while frame is not None:
            code = frame.f_code
            if code is call:
                return self._top()
            if code is _ENGINE:
                break
            if code.co_filename == _FSDP:
                path = getattr(frame.f_locals.get("self"), "_module_fqn", None)
                if path is not None:
                    return _without_wrappers(path) or self._root_name(frame.f_locals["self"])
            frame = frame.f_back
        node = torch._C._current_autograd_node()
        return self._maker_of(node._sequence_nr()) if node is not None else ""

    def modules(self) -> list[torch.nn.Module]:
        """Those that are named."""
        with self._mu:
            return list(self._names)

    def _top(self) -> str:
        stack: list[tuple[str, int]] = getattr(self._local, "stack", [])
        return stack[-1][0] if stack else ""

    @staticmethod
    def _root_name(group: Any) -> str:
        modules = getattr(group, "modules", ())
        return _class_name(modules[0]) if modules else ""

    def _enter(self, module: torch.nn.Module) -> int:
        stack: list[tuple[str, int]] = self._local.__dict__.setdefault("stack", [])
        with self._mu:
            name = self._names.get(module)
            if name is None:
                if stack and isinstance(module, torch.fx.GraphModule):  # a compiler made it of the module that runs
                    name = self._names[module] = stack[-1][0]
                elif stack:  # a module that its parent does not list
                    name = self._names[module] = f"{stack[-1][0]}.{_class_name(module)}"
                else:
                    self._name_all(module, "", set())
                    name = self._names[module]
            index = len(self._begins)
            self._begins.append(torch._C._autograd._get_sequence_nr())
            self._ends.append(None)
            self._callers.append(name)
            self._around.append(stack[-1][1] if stack else -1)
        stack.append((name, index))
        if self._on_root is not None and len(stack) == 1 and torch._C._current_graph_task_id() == -1:  # in backward it is a recomputation
            self._on_root()
        return index

    def _leave(self, index: int) -> None:
        self._local.stack.pop()
        self._ends[index] = torch._C._autograd._get_sequence_nr()

    def _name_all(self, module: torch.nn.Module, path: str, seen: set[int]) -> None:
        seen.add(id(module))
        self._names[module] = path or _class_name(module)
        for name, child in module.named_children():
            if id(child) in seen:
                continue
            wraps = name in _WRAPPERS or (name == "module" and isinstance(module, torch.nn.parallel.DistributedDataParallel))
            self._name_all(child, path if wraps else f"{path}.{name}" if path else name, seen)

    def _maker_of(self, number: int) -> str:
        """Of the innermost call of a module in which autograd's node of this number was made."""
        with self._mu:
            at = bisect.bisect_right(self._begins, number) - 1
            while at >= 0:
                end = self._ends[at]
                if end is None or number < end:
                    return self._callers[at]
                at = self._around[at]
        return ""


def _class_name(module: torch.nn.Module) -> str:
    """fully_shard() makes of a Model an FSDPModel, which is an FSDPModule and a Model; torch.compile() an OptimizedModule around it."""
    inner = module._modules.get("_orig_mod")
    kind = type(module if inner is None else inner)
    return (kind.__mro__[2] if "_fully_shard" in kind.__module__ else kind).__name__


def _without_wrappers(path: str) -> str:
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)
