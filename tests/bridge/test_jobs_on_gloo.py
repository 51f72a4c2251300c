"""Random jobs of tests/campaign on gloo: the oracle that rankloom is held to is right for a library that is not ours."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WRITER = ROOT / "build" / "tests" / "campaign" / "write_jobs"
RUNNER = ROOT / "tests" / "campaign" / "jobs_on_gloo.py"


@pytest.fixture
def jobs():
    if not WRITER.exists():
        pytest.skip(f"{WRITER} is not built: ./dev build tests/campaign/write_jobs")
    text = subprocess.run([WRITER, "--jobs", "40", "--ranks", "2"], capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in text.splitlines()]


def changed(seed):
    """A job whose oracle is wrong about rank 1."""
    call = {
        "kind": "collective", "id": 1, "group": 0, "members": [0, 1], "at_once": True, "op": "all_reduce", "root": 0, "uneven": 0,
        "rows": 1, "reduce": "sum", "outputs": [[2], [2]], "splits": [[2, 2], [2, 2]], "dtype": "int8",
        "inputs": [["0103"], ["0201"]], "saw": ["0304", "0305"],
    }  # fmt: skip
    return {"seed": seed, "ranks": 2, "acts": [call]}


def test_every_rank_sees_what_the_oracle_says(jobs, tmp_path):
    path = tmp_path / "jobs.jsonl"
    path.write_text("".join(json.dumps(job) + "\n" for job in [*jobs, changed(4711)]))
    ran = subprocess.run([sys.executable, "-W", "ignore", RUNNER, path], capture_output=True, text=True, timeout=240)
    lines = ran.stdout.splitlines()
    wrong = [line for line in lines if line.startswith("seed ")]
    assert len(wrong) == 1, ran.stdout + ran.stderr
    assert wrong[0].startswith("seed 4711, rank 1: ")
    assert wrong[0].endswith(": have 0304, want 0305")
    assert ran.returncode == 1
    counted = re.fullmatch(r"41 jobs: (?:.*, )?(\d+) calls, .*\b(\d+) sights; 1 wrong", lines[-1])
    assert counted, lines[-1]
    assert int(counted[1]) > 100
