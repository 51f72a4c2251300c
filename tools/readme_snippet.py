#!/usr/bin/env python3
"""Writes the first ```cpp block of a page that holds a GoogleTest test into a source file, as it stands.

    tools/readme_snippet.py README.md OUTPUT.cc
"""

import pathlib
import re
import sys


def extract(page, name):
    for block in re.finditer(r"^```(?:cpp|c\+\+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if re.search(r"^TEST(_F|_P)?\(", block.group(1), re.MULTILINE):
            line = page.count("\n", 0, block.start(1)) + 1
            return f'#line {line} "{name}"\n{block.group(1)}'
    return None


def main(arguments):
    source, output = map(pathlib.Path, arguments)
    snippet = extract(source.read_text(encoding="utf-8"), source.name)
    if snippet is None:
        print(f"{source}: no ```cpp block with a TEST", file=sys.stderr)
        return 1
    output.write_text(snippet, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
