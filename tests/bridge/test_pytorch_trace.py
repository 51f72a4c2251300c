"""The programs of examples/pytorch_trace, as a reader of docs/fake.md calls them."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "pytorch_trace"


def run_example(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, EXAMPLE / program, *arguments], capture_output=True, text=True, timeout=600)


SMALL = ["--model=llama3-8b", "--batch=4", "--sequence=64", "--efficiency=0.4"]


@pytest.mark.parametrize(
    ("mesh", "options", "ranks"),
    [
        ("dp=4,tp=2", ["--recompute=selective", "--compiled"], 1),
        ("pp=2,dp=2,tp=2", ["--microbatches=4", "--schedule=Interleaved1F1B", "--stages-per-rank=2", "--recompute=full", "--float8"], 2),
    ],
)
def test_a_step_is_traced(mesh: str, options: list[str], ranks: int, tmp_path: pathlib.Path) -> None:
    done = run_example("trace_step.py", *SMALL, f"--mesh={mesh}", *options, f"--trace={tmp_path / 'step.json'}")
    assert done.returncode == 0, done.stderr
    rows = dict(re.findall(r"^  (time|MFU|HFU|compute|exposed \w+|idle) +(.*)$", done.stdout, re.MULTILINE))
    assert {"time", "MFU", "HFU", "compute", "idle", "exposed dp", "exposed tp"} <= rows.keys(), done.stdout
    of = "rank 0" if ranks == 1 else f"{ranks} ranks"
    assert done.stdout.startswith(f"step of {of} on h100_sxm, at 40.0% of its peak\n"), done.stdout
    assert re.search(r"^tokens/s/GPU [1-9]\d*, \d+ TFLOP/s/GPU by 6N and attention$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(rf"^traced {ranks} of 8 ranks in ", done.stderr, re.MULTILINE), done.stderr
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 4}.intersection(range(4 * ranks))
    assert {"compute", "dp", "tp"} <= {event["args"]["name"] for event in events if event["name"] == "thread_name"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["--mesh=8"], "--mesh 8: want DIM=SIZE with commas between"), (["--mesh=tp=2,dp=2"], "--mesh tp=2,dp=2: want pp, dp and tp, in this order")],
)
def test_a_mesh_that_is_none(arguments: list[str], text: str) -> None:
    done = run_example("trace_step.py", *arguments)
    assert (done.returncode, done.stderr) == (2, text + "\n")


def test_the_estimate_of_the_docs_is_printed_again() -> None:
    """The quickest of the points of docs/fake.md; the others take minutes each."""
    page = (ROOT / "docs" / "fake.md").read_text()
    efficiency = re.search(r"^    efficiency (0\.\d+)$", page, re.MULTILINE)
    assert efficiency is not None
    done = run_example("published.py", "--only=8b", f"--efficiency={efficiency[1]}")
    assert done.returncode == 0, done.stderr
    [row] = [line for line in done.stdout.splitlines() if line.startswith("| 8b |")]
    assert row in page.splitlines(), f"published.py prints\n{row}\n{done.stdout}"
    assert done.stdout.startswith(f"efficiency {efficiency[1]}\n\n| point | GPUs | published | estimate |")
    want = "8b: torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table 3; memory 67.0 GiB; taken for granted: sequences of 8192"
    assert done.stdout.splitlines()[-1] == want


def test_a_point_that_is_none() -> None:
    done = run_example("published.py", "--only=8b,70b")
    names = "8b, 8b-compile, 8b-float8, 405b-1f1b, 405b-interleaved, 405b-8192, 175b"
    assert (done.returncode, done.stderr) == (2, f"--only 70b: want some of {names}\n")
