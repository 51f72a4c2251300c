"""The command line."""

from __future__ import annotations

import argparse
import io
import os
import pathlib
import re
import sys

from rankloom_command import page, record, run_file, text, trace
from rankloom_command.run_file import Run, RunFileError

EXAMPLES = """examples:
  RANKLOOM_REPORT=runs ./train            a run that fails writes runs/train.run1.rlrun
  rankloom report runs/train.run1.rlrun -o run.html
  rankloom report passes.rlrun fails.rlrun -o both.html
  rankloom report step.rlrun -o step.html what fake ranks called: traces::write_run()
  rankloom show runs/train.run1.rlrun     the same as text
  rankloom show runs/train.run1.rlrun --rank 3
  rankloom diff passes.rlrun fails.rlrun  the first call that differs
  rankloom trace failing.rltrace          the choices of a schedule
"""


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    parser = argparse.ArgumentParser(
        prog="rankloom",
        description="Shows runs that rankloom wrote: *.rlrun (RANKLOOM_REPORT, RunReport::write_run()) and *.rltrace.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    report = commands.add_parser("report", help="one HTML page that needs nothing else; of two runs: beside each other")
    report.add_argument("run", nargs="+", help="one run file, or two; or what traces::write_perfetto() wrote of fake ranks, *.json")
    report.add_argument("-o", "--output", default="run.html", help="the page (run.html)")
    report.add_argument(
        "--source", action="append", metavar="FOLDER", help="where sources are whose lines the page shows (the current folder); may be repeated"
    )
    report.add_argument("--no-source", action="store_true", help="no line of the program is in the page")
    shown = commands.add_parser("show", help="a run as text")
    shown.add_argument("run")
    shown.add_argument("--rank", type=int, help="all calls of this rank of the world that the file has")
    shown.add_argument("--last", type=int, default=3, help="how many calls of each rank that did not return or has failed assertions (3)")
    diff = commands.add_parser("diff", help="the first difference of two runs; exits with 1 if there is one")
    diff.add_argument("a")
    diff.add_argument("b")
    traced = commands.add_parser("trace", help="the choices in a trace file")
    traced.add_argument("trace")
    traced.add_argument("--all", action="store_true", help="every choice, not the first and last")
    return parser


def read(path: str) -> Run:
    """A run file, or by its name, *.json, what traces::write_perfetto() wrote of fake ranks. Errors: RunFileError."""
    return record.read(path) if path.endswith(".json") else run_file.read(path)


def _in_colour(shown: str, ok: bool) -> str:
    """On a terminal that wants it: how the run ended in red or green, the circle and the command that repeats it marked, as
    failure_in_colours() of the library does."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb":
        return shown
    head, end, rest = shown.partition("\n")
    rest = re.sub("^(  cycle: .*)$", "\x1b[33m\\1\x1b[0m", rest, flags=re.MULTILINE)
    rest = re.sub("(run it again: )(.*)$", "\\1\x1b[1m\\2\x1b[0m", rest, flags=re.MULTILINE)
    return f"\x1b[{32 if ok else 31};1m{head}\x1b[0m{end}{rest}"


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "report":
        if len(arguments.run) > 2:
            raise RunFileError(f"{len(arguments.run)} runs, want one, or two beside each other")
        for path in arguments.run:
            if os.path.exists(arguments.output) and os.path.exists(path) and os.path.samefile(path, arguments.output):
                raise RunFileError(f'file "{arguments.output}" is the run itself, want another for the page')
        folders = [] if arguments.no_source else [pathlib.Path(folder) for folder in arguments.source or ["."]]
        html = page.page([read(path) for path in arguments.run], folders)
        try:
            pathlib.Path(arguments.output).write_text(html, encoding="utf-8")
        except OSError as error:
            raise RunFileError(f'file "{arguments.output}": {error.strerror}') from None
        print(text.plain(f"{arguments.output}: {len(html.encode()) / 1e6:.2f} MB"))
    elif arguments.command == "show":
        run = read(arguments.run)
        if arguments.rank is not None and str(arguments.rank) not in run.of_world():
            want = f"one of those that were traced: {', '.join(run.of_world())}" if run.lanes() else f"0 <= rank < world_size = {run.world_size}"
            raise RunFileError(f"--rank is {arguments.rank}, want {want}")
        print(_in_colour(text.show(run, arguments.rank, max(1, arguments.last)), run.ok()), end="")
    elif arguments.command == "diff":
        told, alike = text.diff(read(arguments.a), read(arguments.b))
        print(told, end="")
        return 0 if alike else 1
    else:
        print(text.plain(trace.show(trace.read(arguments.trace), arguments.all)), end="")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0, 1 of a diff that found something, 2 with a line on stderr.

    arguments: None: those of the process, for the script that a wheel installs.
    """
    if sys.stdout is None:  # the process began with it closed
        print("rankloom: standard output: is closed", file=sys.stderr)
        return 2
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names in a file may have letters that the terminal has not
    try:
        code = _run(parser().parse_args(arguments))
        sys.stdout.flush()
        return code
    except RunFileError as error:
        print(f"rankloom: {text.plain(str(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()  # of `| head`
        return 0
    except OSError as error:
        print(f"rankloom: standard output: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in the buffer goes nowhere
        return 2
