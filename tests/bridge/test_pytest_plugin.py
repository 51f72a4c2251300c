"""The pytest plugin, in a pytest of its own."""

import pathlib
import re
import subprocess
import sys
from importlib.metadata import entry_points

FILE = '''
import pytest, torch
import torch.distributed as dist

@pytest.fixture
def base():
    return 10

@pytest.mark.ranks(3, seeds=2, timeout=30)
def test_sum(rank, world_size, base):
    x = torch.tensor([float(rank + base)])
    dist.all_reduce(x)
    assert x.item() == 33 and world_size == 3

@pytest.mark.ranks(3, seeds=[8])
def test_fails(rank):
    dist.barrier()
    assert rank != 1

@pytest.mark.ranks(2)
def test_skips(rank):
    if rank == 1:
        pytest.skip("not here")
    dist.barrier()

def test_without_a_mark(rank):
    pass
'''


def test_the_plugin(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_it.py").write_text(FILE)
    installed = any(entry.value == "rankloom.torch.pytest_plugin" for entry in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "rankloom.torch.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider",
               "--junit-xml=out.xml", "-rs", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert re.search(r"1 failed, 1 passed, 1 skipped, 1 error", done.stdout), done.stdout + done.stderr
    assert "rank 1 failed" in done.stdout and "assert 1 != 1" in done.stdout
    assert "RANKLOOM_SEED=8" in done.stdout
    assert "not here" in done.stdout
    assert "the fixture rank needs @pytest.mark.ranks(n)" in done.stdout
    xml = (tmp_path / "out.xml").read_text()
    assert 'name="rankloom_seed" value="8"' in xml and 'name="rankloom_rank" value="1"' in xml
