"""Calls of tensors on a device: kernels of ours in the order of the caller's stream, on a device that is played (played_device.cc)."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = pathlib.Path(__file__).parent / "scripts" / "device_tensors.py"
CASES = re.findall(r"^@(?:case|only_played)\ndef (\w+)", SCRIPT.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    """By case: "ok", or how it failed. In a process of their own, which has the device for good."""
    built = sorted((ROOT / "build-torch" / "tests" / "bridge").glob("played_device*.so"))
    assert built, "the played device is not built: ninja -C build-torch played-device"
    run = subprocess.run([sys.executable, SCRIPT, built[0]], capture_output=True, text=True, timeout=300)
    assert run.returncode in (0, 1), run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("case", CASES)
def test_on_a_played_device(case: str, results: dict[str, str]) -> None:
    assert results[case] == "ok", results[case]
