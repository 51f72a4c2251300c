"""A test class that runs inside a test, the readers of traces, and parts that a build may lack: shared by tests."""

import importlib.util
import os
import pathlib
import shutil
import unittest

import pytest
import rankloom.torch

# The readers of traces that the core's tests have.
_spec = importlib.util.spec_from_file_location(
    "read_traces", pathlib.Path(__file__).parents[1] / "collectives" / "records" / "read_traces.py"
)
assert _spec is not None and _spec.loader is not None
read_traces = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(read_traces)


def run_case(case: type[unittest.TestCase]) -> unittest.TestResult:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    return result


def needs_chakra() -> None:
    """Skips a test only where the bridge cannot have been built with protobuf: the machine has no compiler of it, and is not CI's."""
    if rankloom.torch._ext.has_chakra:
        return
    if shutil.which("protoc") is None and "CI" not in os.environ:
        pytest.skip("this rankloom was built without protobuf, and protoc is not there")
    pytest.fail("this rankloom was built without protobuf: Chakra's traces are not tested; want libprotobuf-dev when it is built")
