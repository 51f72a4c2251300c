#!/usr/bin/env python3
"""Checks that docs/architecture.md prints the order of locks as sim/base/lock_order.h has it, and that each lock has a level.

    tools/check_lock_order.py [ROOT]
    tools/check_lock_order.py --write [ROOT]    writes the table into the page

Runs as the test `lock_order` and in ./dev lint. Prints `path:line: what is wrong` and exits with 1 if anything is.
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
from check_layers import NOT_CODE, blank, line_of  # noqa: E402

HEADER = "sim/base/lock_order.h"
SOURCE = "sim/base/lock_order.cc"
PAGE = "docs/architecture.md"
HEAD = "| lock | guards |\n| --- | --- |\n"
LIBRARY = ["sim", "fake_store", "world", "collectives", "harness", "include/rankloom"]
# Where locks are made of others, and where threads sleep and are counted on systems without a futex: nothing is called under those.
MAKERS = [HEADER, "sim/sync/rank_mutex.h", "sim/base/system.cc"]
BARE = re.compile(r"\babsl::Mutex\s+\w+|\bstd::(?:recursive_|shared_|timed_)?mutex\s+\w+")


def levels(header):
    """(name in words, what it guards) of each level, in order."""
    body = re.search(r"enum class LockLevel[^{]*\{(.*?)\n\};", header, re.DOTALL)
    found = re.findall(r"^\s*k(\w+),\s*//\s*(.*?)\s*$", body.group(1) if body else "", re.MULTILINE)
    return [(re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower(), guards) for name, guards in found]


def table(rows):
    return HEAD + "".join(f"| {name} | {guards} |\n" for name, guards in rows)


def printed(page):
    """(offset, text) of the table in the page; offset -1 if there is none."""
    at = page.find(HEAD)
    if at < 0:
        return at, ""
    return at, HEAD + re.match(r"(?:\|.*\n)*", page[at + len(HEAD):]).group(0)


def check(root):
    header, page = (root / HEADER).read_text(), (root / PAGE).read_text()
    rows = levels(header)
    if not rows:
        return [f"{HEADER}:1: no levels found, want `kName,  // what it guards` in LockLevel"]
    problems = []
    count = len(re.findall(r"^\s*k\w+,", re.search(r"enum class LockLevel[^{]*\{(.*?)\n\};", header, re.DOTALL).group(1), re.MULTILINE))
    if count != len(rows):
        problems.append(f"{HEADER}:1: {count - len(rows)} levels do not say what they guard")
    names = re.search(r"kNames = \{(.*?)\};", (root / SOURCE).read_text(), re.DOTALL)
    if names is None or re.findall(r'"([^"]*)"', names.group(1)) != [name for name, _ in rows]:
        problems.append(f"{SOURCE}:1: kNames are not the levels of {HEADER} in words")
    at, text = printed(page)
    if text != table(rows):
        problems.append(f"{PAGE}:{line_of(page, max(at, 0))}: the table of locks is not that of {HEADER}, "
                        "want what tools/check_lock_order.py --write writes")
    for folder in LIBRARY:
        for file in sorted((root / folder).rglob("*")):
            path = file.relative_to(root).as_posix()
            if file.suffix not in (".h", ".cc") or path in MAKERS:
                continue
            code = NOT_CODE.sub(blank, file.read_text())
            problems += [f"{path}:{line_of(code, found.start())}: a lock without a level, want an OrderedMutex ({HEADER}), "
                         "a RankMutex or an ObservedMutex" for found in BARE.finditer(code)]
    return problems


def main(arguments):
    write = "--write" in arguments
    rest = [argument for argument in arguments if argument != "--write"]
    root = pathlib.Path(rest[0]) if rest else pathlib.Path(__file__).resolve().parent.parent
    if write:
        page = (root / PAGE).read_text()
        at, text = printed(page)
        if at < 0:
            sys.exit(f"{PAGE}: no table of locks to replace")
        (root / PAGE).write_text(page[:at] + table(levels((root / HEADER).read_text())) + page[at + len(text):])
    problems = check(root)
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
