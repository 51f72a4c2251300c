"""rankloom's torchrun, as a process of its own and in the test's."""

import contextlib
import io
import logging
import os
import pathlib
import re
import subprocess
import sys

from rankloom.torch import _torchrun

SCRIPTS = pathlib.Path(__file__).parent / "scripts"


def launch(
    folder: pathlib.Path, *arguments: str, module: str = "rankloom.torch", stdin: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    variables = {**os.environ, **(env or {})}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, input=stdin, env=variables)


def _state() -> tuple[object, ...]:
    # A variable that torch's compiler sets for good when it is first asked for.
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    return sys.modules["__main__"], list(sys.path), list(sys.argv), environment, type(sys), sys.breakpointhook


def launch_here(folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As launch(), in this process: a run leaves nothing behind that the next would see."""
    before, out, err = os.getcwd(), io.StringIO(), io.StringIO()
    # The value that `python -m rankloom.torch` has there; pytest has its own, and each of its workers -c.
    argv, sys.argv = sys.argv, [str(pathlib.Path(_torchrun.__file__).with_name("__main__.py"))]
    state = _state()
    handlers, logging.root.handlers = logging.root.handlers, []  # pytest's
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = _torchrun.main(arguments)
    finally:
        os.chdir(before)
        logging.root.handlers = handlers
        left = _state()
        sys.argv = argv
    assert state == left
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def launch_text(folder: pathlib.Path, source: str, *options: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(source)
    return launch(folder, *options, "script.py", stdin=stdin)


def launch_text_here(folder: pathlib.Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(source)
    return launch_here(folder, *options, "script.py")


def lines(out: str) -> list[str]:
    """Without their ranks, in an order of their own: processes print in any."""
    return sorted(re.sub(r"^\[rank\d+\]: ", "", line) for line in out.splitlines())
