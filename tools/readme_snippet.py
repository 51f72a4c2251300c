#!/usr/bin/env python3
"""Writes the first ```cpp block of a page that holds a GoogleTest test into a source file, as it stands; with --all, each of them,
of several pages, whose names of tests differ then; with --block I/N, the I-th of all N ```cpp blocks of the page.

    tools/readme_snippet.py README.md OUTPUT.cc
    tools/readme_snippet.py --all PAGE.md... OUTPUT.cc
    tools/readme_snippet.py --block 2/3 PAGE.md OUTPUT.cc
"""

import pathlib
import re
import sys


def extract(page, name):
    """All blocks, each after a #line."""
    blocks = []
    for block in re.finditer(r"^```(?:cpp|c\+\+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        line = page.count("\n", 0, block.start(1)) + 1
        blocks.append(f'#line {line} "{name}"\n{block.group(1)}')
    return blocks


def has_test(block):
    return re.search(r"^TEST(_F|_P)?\(", block, re.MULTILINE) is not None


def main(arguments):
    if arguments[0] == "--block":
        which, page, output = arguments[1], pathlib.Path(arguments[2]), pathlib.Path(arguments[3])
        number, count = map(int, which.split("/"))
        blocks = extract(page.read_text(encoding="utf-8"), page.name)
        if len(blocks) != count:
            print(f"{page}: {len(blocks)} ```cpp blocks, want {count}: who tries the others?", file=sys.stderr)
            return 1
        output.write_text(blocks[number - 1], encoding="utf-8")
        return 0
    all_of_them = arguments[0] == "--all"
    *pages, output = map(pathlib.Path, arguments[1:] if all_of_them else arguments)
    found = []
    for page in pages:
        blocks = list(filter(has_test, extract(page.read_text(encoding="utf-8"), page.name)))
        if not blocks:
            print(f"{page}: no ```cpp block with a TEST", file=sys.stderr)
            return 1
        found += blocks if all_of_them else blocks[:1]
    output.write_text("".join(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
