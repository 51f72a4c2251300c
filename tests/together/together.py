#!/usr/bin/env python3
"""Writes one source of several tests.

    together.py OUTPUT SOURCE...

Each source keeps its place, as far as compilers and GoogleTest tell it, and has a namespace of its own in the place of the
unnamed one, so that two may have a helper of the same name.
"""

import pathlib
import re
import sys


def main(arguments):
    text = []
    for source in arguments[1:]:
        path = pathlib.Path(source)
        lines, replaced = re.subn(r"^namespace \{$", f"namespace {path.stem} {{", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        if not replaced:
            sys.exit(f"together.py: {source} has no unnamed namespace, want its tests in one")
        text.append(f'#line 1 "{source}"\n{lines}')
    pathlib.Path(arguments[0]).write_text("".join(text), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
