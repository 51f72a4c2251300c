"""The Python of docs/pytorch.md: every block is run as it stands there, behind the lines that the page leaves to the reader."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from test_pytest_plugin import plugin_arguments

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
# Texts that differ from run to run, and those that stand for them.
DIFFERS = [
    (r"in [\d.e-]+ s \(\d+ a second\)", "in N s (N a second)"),
    (re.escape(sys.executable), "python"),
    (r'File "[^"]*/([^/"]+)"', r'File "\1"'),
]


def block(begin: str) -> str:
    """The block that begins so."""
    (found,) = (text for text in BLOCKS if text.startswith(begin))
    return found


def shown_after(text: str) -> str:
    """The indented lines that follow a block: what it prints."""
    after = PAGE[PAGE.index(f"```python\n{text}```\n") + len(f"```python\n{text}```\n") :]
    (lines,) = re.findall(r"\A\n((?:    .*\n|\n(?=    ))+)", after)
    return re.sub(r"^    ", "", lines, flags=re.MULTILINE)


def settled(text: str) -> str:
    for pattern, instead in DIFFERS:
        text = re.sub(pattern, instead, text)
    return text.strip()


def run_file(folder: pathlib.Path, name: str, source: str, *before: str) -> subprocess.CompletedProcess[str]:
    """The file as an argument of Python, or of the words `before` it, with nothing of this session's environment."""
    (folder / name).write_text(source)
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("RANKLOOM_", "PYTEST_"))}
    variables["RANKLOOM_TRACE_DIR"] = str(folder / "traces")
    return subprocess.run([sys.executable, *before, name], cwd=folder, env=variables, capture_output=True, text=True, timeout=300)


def printed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


PROGRAM = block("import rankloom.torch\nimport torch\n")

# The begin of each block -> the test of it.
TESTED = {
    "import rankloom.torch\n\nrankloom.torch.install()": "test_stands_behind_names_of_backends",
    "# before\n": "test_base_classes_have_the_same_name",
    "import rankloom.torch\nimport torch\n": "test_a_program_of_four_ranks",
    "@pytest.mark.ranks(": "test_a_mark_of_pytest",
    "dist.init_process_group(": "test_a_wait_that_is_missing",
    "rankloom.torch.spawn(": "test_spawn",
    "for call in ": "test_flight_records",
    "found = ": "test_explore",
    "def count(rank)": "test_a_count_that_goes_wrong",
    "crash = ": "test_faults_by_plan",
}


def test_every_block_has_a_test() -> None:
    begins = [next((begin for begin in TESTED if text.startswith(begin)), text) for text in BLOCKS]
    assert sorted(begins) == sorted(TESTED)
    assert [name for name in TESTED.values() if name not in globals()] == []


def test_stands_behind_names_of_backends(tmp_path: pathlib.Path) -> None:
    source = block("import rankloom.torch\n\nrankloom.torch.install()")
    printed(run_file(tmp_path, "installed.py", f"{source}rankloom.torch.uninstall()\n"))


def test_base_classes_have_the_same_name(tmp_path: pathlib.Path) -> None:
    source = block("# before\n")
    assert printed(run_file(tmp_path, "bases.py", f"{source}print(MultiProcessTestCase.__module__)\n")).startswith("rankloom.")


def test_a_program_of_four_ranks(tmp_path: pathlib.Path) -> None:
    (line,) = [line for line in PROGRAM.splitlines() if "print(" in line]
    assert printed(run_file(tmp_path, "program.py", PROGRAM)).strip() == line.split("#")[1].strip()


def test_a_mark_of_pytest(tmp_path: pathlib.Path) -> None:
    source = f"import pytest\n\n{block('@pytest.mark.ranks(')}"
    out = printed(run_file(tmp_path, "test_it.py", source, "-m", "pytest", *plugin_arguments()))
    assert re.search(r"\b(1|20) passed\b", out), out


def test_a_wait_that_is_missing(tmp_path: pathlib.Path) -> None:
    source = block("dist.init_process_group(")
    script = (ROOT / "tests" / "bridge" / "scripts" / "missing_wait.py").read_text(encoding="utf-8")
    assert source in script
    (command,) = re.findall(r"^\$ python (.*) missing_wait\.py$", shown_after(source), re.MULTILINE)
    done = run_file(tmp_path, "missing_wait.py", script, *shlex.split(command))
    assert done.returncode == 1
    text = done.stdout + done.stderr
    for line in shown_after(source).splitlines():
        if line.startswith(("rank 1 failed", "rank 0 stopped", "outputs hold", "run it again", "found by", "shrunk in")):
            assert line in text, text


def test_spawn(tmp_path: pathlib.Path) -> None:
    before = (
        "import rankloom.torch\nimport torch\nimport torch.distributed as dist\n\n"
        "def main(rank, world_size):\n"
        '    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29500", rank=rank, world_size=world_size)\n'
        "    x = torch.tensor([rank + 1.0])\n    dist.all_reduce(x)\n    assert x.item() == 6, x\n"
        '    print(f"rank {rank} of {world_size}")\n    dist.destroy_process_group()\n\nworld_size = 3\n'
    )
    out = printed(run_file(tmp_path, "spawned.py", before + block("rankloom.torch.spawn(")))
    assert sorted(line for line in out.splitlines() if line) == ["rank 0 of 3", "rank 1 of 3", "rank 2 of 3"]


def test_flight_records(tmp_path: pathlib.Path) -> None:
    out = printed(run_file(tmp_path, "records.py", PROGRAM + block("for call in ")))
    (line,) = (line for line in out.splitlines() if line.startswith("gloo:all_reduce 1 completed "))
    assert "records.py" in line


def test_explore(tmp_path: pathlib.Path) -> None:
    source = block("found = ")
    (line,) = [line for line in source.splitlines() if "print(" in line]
    assert printed(run_file(tmp_path, "explored.py", PROGRAM + source)).splitlines()[-1] == line.split("#")[1].strip()


def test_a_count_that_goes_wrong(tmp_path: pathlib.Path) -> None:
    source = block("def count(rank)")
    text = shown_after(source)
    # The page's numbers of lines say how many lines the reader's file has before.
    (at,) = re.findall(r"store set 0//count \[count\.py:(\d+)\]\n.*\n.*barrier seq 1", text)
    head = ["import rankloom.torch", "import torch.distributed as dist"]
    head += [""] * (int(at) - 4 - len(head))
    done = run_file(tmp_path, "count.py", "\n".join(head) + "\n" + source)
    assert settled(printed(done)) == settled(text)


@pytest.mark.timeout(300)
def test_faults_by_plan(tmp_path: pathlib.Path) -> None:
    printed(run_file(tmp_path, "faults.py", PROGRAM + block("crash = ")))
