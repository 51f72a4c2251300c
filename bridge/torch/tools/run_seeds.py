#!/usr/bin/env python3
"""Runs test files that were written for PyTorch's own process groups on rankloom, and reports every test.

    run_seeds.py [--size-down N] [--only NAME] [--json FILE] PATH...

`pytest --rankloom FILE` runs such a file as it is, which is what to use where a machine has what the file asks for. This program
stays for files that this does not do for:
  - their tests are skipped where there are not as many GPUs as ranks, though nothing in them needs one;
  - they import helper modules of PyTorch's repository;
  - a test that ends the process, or hangs, must not end those after it: the rest goes on in a new process;
  - some failures are known, with reasons, and only others count.

Each file runs in a process of its own. In it
  - ranks are threads, also of tests that spawn processes;
  - the backends threaded, fake, gloo and nccl are rankloom's;
  - there is no GPU: decorators that ask for one let the test pass on, devices are mapped to cpu, device_ids are dropped;
  - helper modules that torch's wheel does not carry (test_c10d_common, test_c10d_spawn) are ours, from helpers/.

--size-down N: layers of 4000 become layers of N, for a machine with little memory.
Exits with 1 if a test failed that is not in expected.py.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import pathlib
import sys
import types
import unittest
from collections.abc import Iterator
from typing import Any

import expected
import suites

HERE = pathlib.Path(__file__).resolve().parent


class _Devices(ast.NodeTransformer):
    """torch.device(x) becomes _rankloom_device(x); --size-down changes 4000."""

    def __init__(self, size: int | None) -> None:
        self.size = size

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func) == "torch.device":
            node.func = ast.copy_location(ast.Name("_rankloom_device", ast.Load()), node.func)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if self.size is not None and node.value == 4000:
            return ast.copy_location(ast.Constant(self.size), node)
        return node


def _same(*_: Any, **__: Any) -> Any:
    """A decorator with arguments that leaves what it decorates alone."""
    return lambda decorated: decorated


def _without_gpu() -> None:
    """Lets tests that ask for a GPU run on the CPU."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.nn.parallel import DistributedDataParallel
    from torch.testing._internal import common_distributed, common_fsdp

    common_distributed.HAS_ACCELERATOR = True
    common_distributed.skip_if_lt_x_gpu = _same
    common_distributed.requires_gloo = _same
    common_distributed.requires_nccl = _same
    common_distributed.requires_accelerator_dist_backend = _same
    common_fsdp.get_devtype = lambda: torch.device("cpu")

    ddp_init = DistributedDataParallel.__init__

    def init_ddp(self: Any, module: Any, device_ids: Any = None, *args: Any, **kwargs: Any) -> None:
        ddp_init(self, module, None, *args, **kwargs)

    DistributedDataParallel.__init__ = init_ddp  # type: ignore[method-assign]

    fsdp_init = FullyShardedDataParallel.__init__

    def init_fsdp(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("device_id", torch.device("cpu"))
        fsdp_init(self, *args, **kwargs)

    FullyShardedDataParallel.__init__ = init_fsdp  # type: ignore[method-assign]


def _ranks_as_threads() -> None:
    from rankloom.torch import testing
    from torch.testing._internal import common_distributed

    common_distributed.MultiProcessTestCase = testing.MultiProcessTestCase
    common_distributed.DistributedTestBase = testing.DistributedTestBase


def _load(path: pathlib.Path, size: int | None) -> types.ModuleType:
    import torch

    for helper in (HERE / "helpers").glob("*.py"):
        spec = importlib.util.spec_from_file_location(helper.stem, helper)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[helper.stem] = module
        spec.loader.exec_module(module)
    tree = ast.fix_missing_locations(_Devices(size).visit(ast.parse(path.read_text(), str(path))))
    module = types.ModuleType("seed_" + path.stem)
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    module.__dict__["_rankloom_device"] = lambda *_, **__: torch.device("cpu")
    exec(compile(tree, str(path), "exec"), module.__dict__)
    if hasattr(module, "gpus_for_rank"):
        module.gpus_for_rank = lambda size: [[torch.device("cpu")] for _ in range(size)]  # type: ignore[attr-defined]
    return module


def _run_one(path: pathlib.Path, arguments: argparse.Namespace) -> None:
    import rankloom.torch
    import torch

    _without_gpu()
    _ranks_as_threads()
    rankloom.torch.install("gloo", "nccl")
    module = _load(path, arguments.size_down)

    def tests() -> Iterator[unittest.TestCase]:
        for suite in unittest.defaultTestLoader.loadTestsFromModule(module):
            for test in suite:  # type: ignore[union-attr]
                yield test  # type: ignore[misc]
                # The state that would be gone with a process that ends.
                if torch.distributed.is_initialized():
                    torch.distributed.destroy_process_group()

    suites.run_here(tests(), arguments.after, arguments.only)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=pathlib.Path)
    parser.add_argument("--size-down", type=int, metavar="N")
    arguments = suites.parse(parser, per_test=300.0)
    if arguments.one:
        _run_one(arguments.paths[0], arguments)
        return 0

    bad = 0
    every: list[suites.Row] = []
    for path in arguments.paths:
        command = [suites.PYTHON, __file__, "--one", str(path)]
        if arguments.size_down:
            command += ["--size-down", str(arguments.size_down)]
        if arguments.only:
            command += ["--only", arguments.only]
        rows = suites.run_in_processes(command, arguments.per_test)
        bad += suites.report(rows, expected.SEEDS, path.stem, not arguments.quiet)
        every += [{"file": path.stem, **row} for row in rows]
    suites.save(arguments.json, every)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
