"""The runners of other people's tests, on files of our own, on PyTorch's suite, and on a folder that the caller has."""

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ROOT / "bridge" / "torch" / "tools"

FILE = '''
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_distributed import DistributedTestBase, MultiProcessTestCase, skip_if_lt_x_gpu
from torch.testing._internal.common_utils import TestCase


class Spawning(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_sum(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        x = torch.full((3,), float(self.rank + 1))
        dist.all_reduce(x)
        self.assertEqual(x, torch.full((3,), 3.0))

    def test_that_fails(self):
        self.assertEqual(self.rank, 0)


class Gpu(DistributedTestBase):
    world_size = 2

    @skip_if_lt_x_gpu(2)
    def test_ddp(self):
        group = self.create_pg(torch.device("cuda", 0))
        net = DistributedDataParallel(torch.nn.Linear(2, 2).to(torch.device("cuda", 0)), device_ids=[0], process_group=group)
        net(torch.ones(2)).sum().backward()
        self.assertEqual(next(net.parameters()).device, torch.device("cpu"))


class Plain(TestCase):
    def test_ends_the_process(self):
        import os
        os._exit(3)

    def test_fake(self):
        dist.init_process_group("fake", rank=0, world_size=2)
        dist.all_reduce(torch.ones(2))

    def test_skips(self):
        self.skipTest("not today")
'''


def run(script: str, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOLS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def outcomes(path: pathlib.Path) -> dict[str, Any]:
    return {row["test"]: row["outcome"] for row in json.loads(path.read_text())}


def test_a_file_of_tests(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_file.py").write_text(FILE)
    out = tmp_path / "rows.json"
    done = run("run_seeds.py", "--json", str(out), str(tmp_path / "test_file.py"), timeout=600)
    assert done.returncode == 1, done.stdout + done.stderr
    assert outcomes(out) == {
        "Gpu.test_ddp": "passed",
        "Plain.test_ends_the_process": "failed",
        "Plain.test_fake": "passed",
        "Plain.test_skips": "skipped",
        "Spawning.test_sum": "passed",
        "Spawning.test_that_fails": "failed",
    }
    assert "the process ended with status 3" in done.stdout
    assert "Scalars are not equal!" in done.stdout
    assert "test_file: 2 failed, 3 passed, 1 skipped" in done.stdout


@pytest.mark.parametrize(("believed", "ranks", "at_least"), [("gloo", 8, 123), ("mpi", 4, 125)])
def test_pytorchs_own_suite(believed: str, ranks: int, at_least: int, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "rows.json"
    options = ["--backend", believed, "--ranks", str(ranks), "--seed", "1", "--json", str(out)]
    done = run("run_torch_suite.py", *options, timeout=1500)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(outcome == "passed" for outcome in outcomes(out).values()) >= at_least


@pytest.mark.skipif(
    "RANKLOOM_PYTORCH_TESTS" not in os.environ,
    reason="RANKLOOM_PYTORCH_TESTS does not name a folder of PyTorch test files",
)
@pytest.mark.parametrize("seed", [None, 1])
def test_a_folder_of_pytorch_tests(seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed is not None:
        monkeypatch.setenv("RANKLOOM_SEED", str(seed))
    files = sorted(pathlib.Path(os.environ["RANKLOOM_PYTORCH_TESTS"]).glob("*.py"))
    assert files
    done = run("run_seeds.py", "--size-down", "1000", *map(str, files), timeout=1500)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_example() -> None:
    for arguments in ([], ["--seed", "7"]):
        command = [sys.executable, str(ROOT / "examples" / "pytorch_ddp" / "train.py"), "--ranks", "4", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "on 4 ranks, all with the same weights" in done.stdout
