"""The Python of docs/first-hour.md, followed in an empty folder."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from test_pytest_plugin import plugin_arguments

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_page_holds() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RANKLOOM_", "PYTEST_"))}
    environment["PATH"] = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    environment["PYTEST_ADDOPTS"] = shlex.join(plugin_arguments())
    command = [sys.executable, ROOT / "tools" / "try_page.py", ROOT / "docs" / "first-hour.md", "In Python"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=environment)
    assert done.returncode == 0, done.stderr


def installs(text: str) -> list[tuple[set[str], set[str]]]:
    """Names, without versions, and options, without values, of each `pip install`."""
    found = []
    for line in re.findall(r"pip\"? install ([^|#\n]*)", text.replace("\\\n", " ")):
        words = [word for word in shlex.split(line) if word != "-q"]
        names = {re.split("[=>]", word)[0] for word in words if word[0] not in "-$"}
        found.append((names, {word.split("=")[0] for word in words if word[0] == "-"}))
    return found


@pytest.mark.parametrize("page", ["first-hour.md", "pytorch.md"])
def test_its_install_lines_are_what_dev_does(page: str) -> None:
    dev = (ROOT / "dev").read_text()
    torch, again, others, examples, built = installs(dev[dev.index("\ntorch_environment() {") : dev.index("\nmain() {")])
    assert torch == again == ({"torch"}, set()) and examples[0] == {"hydra-core", "boto3"}
    needs, build = installs((ROOT / "docs" / page).read_text())[:2]
    # dev has what the page names, and what its own tests want besides.
    assert needs[0] <= torch[0] | others[0] and needs[1] == set()
    # A build without isolation finds what it asks for in the environment.
    asked = re.search(r"^requires = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert asked is not None and {re.split("[=>]", name.strip(' "'))[0] for name in asked[1].split(",")} <= needs[0]
    # The same build: the settings keep its folder, and without dependencies nobody is asked for what is there.
    assert build == ({"."}, {"--no-build-isolation"})
    assert built == ({"."}, {"--no-build-isolation", "--no-deps", "--config-settings"})


def test_dev_setup_has_what_a_build_of_the_bridge_needs() -> None:
    dev = (ROOT / "dev").read_text()
    assert "\n./dev setup\npip install torch " in (ROOT / "docs" / "first-hour.md").read_text()
    setup = re.search(r"^cmd_setup\(\) \{ install (.*); \}$", dev, re.MULTILINE)
    bridge = dev[dev.index("\ntorch_environment() {") : dev.index("\nmain() {")]
    needed = set(re.findall(r"^  install (.*)$", bridge, re.MULTILINE))
    assert needed == {'"${base_packages[@]}"', '"${torch_packages[@]}"'}  # the second has Python's headers
    assert setup is not None and needed <= set(setup[1].split())
