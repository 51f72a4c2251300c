#!/usr/bin/env python3
"""Writes the first ```cpp block of a page that holds a GoogleTest test into a source file, as it stands; with --all, each of them,
of several pages, whose names of tests differ then.

    tools/readme_snippet.py README.md OUTPUT.cc
    tools/readme_snippet.py --all PAGE.md... OUTPUT.cc
"""

import pathlib
import re
import sys


def extract(page, name):
    """The blocks, each after a #line."""
    blocks = []
    for block in re.finditer(r"^```(?:cpp|c\+\+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if re.search(r"^TEST(_F|_P)?\(", block.group(1), re.MULTILINE):
            line = page.count("\n", 0, block.start(1)) + 1
            blocks.append(f'#line {line} "{name}"\n{block.group(1)}')
    return blocks


def main(arguments):
    all_of_them = arguments[0] == "--all"
    *pages, output = map(pathlib.Path, arguments[1:] if all_of_them else arguments)
    found = []
    for page in pages:
        blocks = extract(page.read_text(encoding="utf-8"), page.name)
        if not blocks:
            print(f"{page}: no ```cpp block with a TEST", file=sys.stderr)
            return 1
        found += blocks if all_of_them else blocks[:1]
    output.write_text("".join(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
