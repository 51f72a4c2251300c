"""The Python of docs/first-hour.md, followed in an empty folder."""

import os
import pathlib
import shlex
import subprocess
import sys

from test_pytest_plugin import plugin_arguments

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_page_holds() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RANKLOOM_", "PYTEST_"))}
    environment["PATH"] = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    environment["PYTEST_ADDOPTS"] = shlex.join(plugin_arguments())
    command = [sys.executable, ROOT / "tools" / "try_page.py", ROOT / "docs" / "first-hour.md", "In Python"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=environment)
    assert done.returncode == 0, done.stderr
