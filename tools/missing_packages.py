#!/usr/bin/env python3
"""Says which packages that a build needs are missing on a system without apt, by the table of docs/project.md.

    tools/missing_packages.py [PAGE]

A line for each: its name to pkg-config and those of other systems' packages. Exits with 1 if any is missing. Rows that are marked
optional are not asked for.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "project.md"
HEAD = ["", "pkg-config", "Debian, Ubuntu", "Fedora", "Arch", "Homebrew"]
# The first word of a row without a name to pkg-config -> whether it is there.
OTHERWISE = {
    "compiler": lambda: any(map(shutil.which, [os.environ.get("CXX", "c++").split()[-1], "g++", "clang++"])),
    "Meson": lambda: shutil.which("meson") and (shutil.which("ninja") or shutil.which("ninja-build")),
    "pkg-config": lambda: shutil.which("pkg-config"),
    "Boost.Fiber": lambda: has_header("boost/fiber/fiber.hpp"),
}


def has_header(name):
    compiler = next((found for found in map(shutil.which, ["c++", "g++", "clang++"]) if found), None)
    asks = f"#if !__has_include(<{name}>)\n#error\n#endif\n"
    return compiler is not None and subprocess.run([compiler, "-std=c++20", "-x", "c++", "-fsyntax-only", "-"], input=asks,
                                                   text=True, capture_output=True, check=False).returncode == 0


def rows(page):
    """The cells of each row, a list; the rows of the table whose head is HEAD."""
    inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else None
        if cells == HEAD:
            inside = True
        elif inside and cells is None:
            return
        elif inside and not set("".join(cells)) <= set("- "):
            yield cells


def is_there(what, names):
    if not names:
        return OTHERWISE[re.split(r"[ :,]", what)[0]]()
    if shutil.which("pkg-config") is None:
        return False
    return subprocess.run(["pkg-config", "--exists", *names], check=False).returncode == 0


def missing(page):
    for what, ask, _, *systems in rows(page):
        names = re.findall(r"`([^`]+)`", ask)
        if "optional" not in what and not is_there(what, names):
            packages = [f"{system} {name.replace('`', '')}" for system, name in zip(HEAD[3:], systems, strict=True) if name]
            yield f"{what}{f' ({ask})' if names else ''}: {', '.join(packages)}".replace("`", "")


def main():
    lines = list(missing(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE))
    if lines:
        print("missing, and there is no apt here to install it:", *lines, sep="\n  ", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
