#!/usr/bin/env python3
"""Follows a section of a page as a reader does, in an empty folder, and compares what happens with what the page shows.

    tools/try_page.py PAGE HEADING [--write]

Of the blocks under "## HEADING":
- after a paragraph that ends with "`NAME`:" a block is a file of that name; after "at the end of `NAME`:" it comes behind what
  the file has. A ```diff block changes the file: its lines are those of the file, without numbers of lines.
- ```console: lines of "$ COMMAND", each run by a bash of its own, and what it prints to stdout and stderr. A command ends in the
  next line if its own ends with a backslash. A line "..." stands for any lines, " ..." at the end of a line for the rest of it.
  Times, addresses, the folder for temporary files and the hash in the name of a trace may differ, and empty lines may be more.
- ```sh: for the reader alone, such as what installs packages.
Any other block is an error: nobody would try it. Blocks that are indented are text.
--write puts what was printed into the page where it differs.

The environment goes to the commands as it is; they find a temporary folder in TMPDIR, which the page calls /tmp. The path of
the python that they find is python.
"""

import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

LIMIT = 240  # seconds a command may take
BLOCK = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"((?i:a)t\s+the\s+end\s+of\s+)?`([\w.-]+)`:\s*\Z")
# Texts that differ from run to run, and the text that stands for each.
DIFFERS = [
    (re.compile(r"\(\d+ ms( total)?\)"), r"(N ms\1)"),
    (re.compile(r"in [\d.e-]+ s \(\d+ a second\)"), "in N s (N a second)"),
    (re.compile(r"\bin \d+\.\d+s\b"), "in Ns"),
    (re.compile(r"\bat \d[\d.ms]*s$", re.MULTILINE), "at Ns"),
    (re.compile(r"0x[0-9a-f]+"), "0xN"),
    (re.compile(r"-[0-9a-f]{8}(?=\.rl(trace|run)\b)"), "-N"),  # of the folder
    (re.compile(r"\(LWP \d+\)"), "(LWP N)"),
    (re.compile(r"^#\d+ +", re.MULTILINE), "#N  "),  # a frame of gdb's: the library's own may become more
    (re.compile(r"[ \t]+$", re.MULTILINE), ""),
]


class PageError(Exception):
    """The lines that the page has and the machine has not; begins with the line."""


def section(page, heading):
    """(start, end) of what stands under the heading."""
    start = re.search(rf"^## {re.escape(heading)}\n", page, re.MULTILINE)
    if start is None:
        raise PageError(f"1: no heading ## {heading}")
    # A comment in a shell block has one # only.
    end = re.search(r"^## ", page[start.end() :], re.MULTILINE)
    return start.end(), start.end() + end.start() if end else len(page)


def changed(text, diff):
    """The text with the one place changed that the diff fits."""
    old = "".join(line[1:] for line in diff.splitlines(keepends=True) if line[0] != "+")
    new = "".join(line[1:] for line in diff.splitlines(keepends=True) if line[0] != "-")
    if text.count(old) != 1:
        raise PageError(f"the change fits {text.count(old)} places of the file, want 1")
    return text.replace(old, new)


def settled(text):
    for pattern, instead in DIFFERS:
        text = pattern.sub(instead, text)
    return text


def same(shown, printed):
    """Whether the output in the page is the one printed."""

    def line_pattern(line):
        return re.escape(line[:-4]) + ".*" if line.endswith(" ...") else re.escape(line)

    # Empty lines may be more than the page has: newer GoogleTest ends each failure with one.
    pattern = "".join(r"(?:.*\n)*" if line == "..." else line_pattern(line) + r"\n+" for line in settled(shown).splitlines())
    return re.fullmatch(pattern, settled(printed)) is not None


def commands(block):
    """[(command, output)]"""
    found = []
    for line in block.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append([line[2:].rstrip("\n"), ""])
        elif found and found[-1][0].endswith("\\") and not found[-1][1]:
            found[-1][0] += "\n" + line.rstrip("\n")
        elif found:
            found[-1][1] += line
        else:
            raise PageError("output before the first $ COMMAND")
    return found


def run(command, folder, temporary):
    environment = {**os.environ, "TMPDIR": str(temporary), "TEST_TMPDIR": str(temporary), "LC_ALL": "C.UTF-8"}
    shell = subprocess.Popen(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, text=True, errors="replace",
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
    try:
        printed = shell.communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)  # what the shell started, too
        raise PageError(f"{command} took more than {LIMIT} s, and had printed\n{shell.communicate()[0]}") from None
    printed = printed.replace(str(temporary), "/tmp").replace(f"{folder}/", "")
    if python := shutil.which("python"):
        printed = printed.replace(python, "python")
    if shell.returncode != 0 and not printed.strip():
        printed = f"(exit status {shell.returncode})\n"
    return printed if printed == "" or printed.endswith("\n") else printed + "\n"


def follow_block(language, body, before, folder, temporary):
    """The body as it should be."""
    if language == "sh":
        return body
    if language == "console":
        # As printed where it differs.
        told = [(command, shown, run(command, folder, temporary)) for command, shown in commands(body)]
        return "".join(f"$ {command}\n{shown if same(shown, printed) else printed}" for command, shown, printed in told)
    named = FILE.search(before)
    if named is None:
        raise PageError('no file for this block, want "`NAME`:" before it')
    path = folder / named.group(2)
    if language == "diff":
        path.write_text(changed(path.read_text(), body))
    elif named.group(1):
        path.write_text(path.read_text() + body)
    elif path.exists():
        raise PageError(f"{path.name} is there already")
    else:
        path.write_text(body)
    return body


def follow(page, heading, folder, temporary):
    """[(start, end, body as printed)] of the blocks that differ."""
    start, end = section(page, heading)
    differ = []
    before = start
    for block in BLOCK.finditer(page, start, end):
        line = page.count("\n", 0, block.start()) + 1
        try:
            body = follow_block(block.group(1), block.group(2), page[before : block.start()], folder, temporary)
        except (PageError, OSError) as wrong:
            raise PageError(f"{line}: {wrong}") from None
        before = block.end()
        if body != block.group(2):
            differ.append((block.start(2), block.end(2), body))
    if before == start:
        raise PageError(f"{page.count(chr(10), 0, start)}: no block under this heading")
    return differ


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("heading")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    page = options.page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as top:
        folder, temporary = pathlib.Path(top).resolve() / "folder", pathlib.Path(top).resolve() / "tmp"
        folder.mkdir()
        temporary.mkdir()
        try:
            differ = follow(page, options.heading, folder, temporary)
        except PageError as wrong:
            print(f"{options.page}:{wrong}", file=sys.stderr)
            return 1
    for start, end, body in reversed(differ):
        if options.write:
            page = page[:start] + body + page[end:]
        else:
            line = page.count("\n", 0, start) + 1
            print(f"{options.page}:{line}: the page shows\n{page[start:end]}{options.page}:{line}: it is now\n{body}", end="", file=sys.stderr)
    if options.write and differ:
        options.page.write_text(page, encoding="utf-8")
    return 1 if differ and not options.write else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
