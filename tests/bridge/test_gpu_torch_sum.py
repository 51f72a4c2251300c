"""tools/gpu_torch_sum.py, which tools/gpu_session.sh runs on a GPU beside gpu-bench."""

import json
import pathlib
import subprocess
import sys

import pytest
import torch

PROGRAM = pathlib.Path(__file__).parents[2] / "tools" / "gpu_torch_sum.py"


def measure(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, PROGRAM, *options], capture_output=True, text=True, timeout=120)


def test_writes_what_it_measured(tmp_path: pathlib.Path) -> None:
    run = measure("--device", "cpu", "--mib", "0.25", "--tensors", "5", "--json", str(tmp_path / "sum.json"))
    assert run.returncode == 0, run.stderr
    written = json.loads((tmp_path / "sum.json").read_text())
    assert (written["torch"], written["device"]) == (torch.__version__, "CPU")
    names = [row["name"] for row in written["benchmarks"]]
    assert names == [
        "torch sum/5 x 0.25 MiB, one added to the other",
        "torch sum/5 x 0.25 MiB, stacked and summed",
        "torch sum/5 x 0.25 MiB, added, and copied to all",
    ]
    assert all(row["ns_per_op"] > 0 for row in written["benchmarks"])
    assert [line.rsplit(None, 2)[0].strip() for line in run.stdout.splitlines()] == names


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_says_where_there_is_no_gpu() -> None:
    run = measure()
    assert (run.returncode, run.stdout) == (77, "")
    assert run.stderr == f"gpu_torch_sum: nothing was measured: torch {torch.__version__} sees no GPU\n"
