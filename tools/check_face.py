#!/usr/bin/env python3
"""Holds the public headers, include/rankloom, to their size: how many there are, what they include, how many names they give.

    tools/check_face.py [ROOT]
    tools/check_face.py --list [ROOT]   the names by header

At most MOST_HEADERS headers. Each includes the standard library, absl and other public headers only, and GoogleTest where TESTING
says so. At most MOST_NAMES names stand in `namespace rankloom` itself: types, concepts, functions, constants, aliases, enums and
the names of namespaces but `internal`; overloads are one name. Members, enumerators, operators and macros count nothing, nor does what stands in a
namespace within. A class that is only declared is a name as well.

The names are Universal Ctags': it reads what is written, in milliseconds and without compiling, so that no macro's expansion and
no package that is not installed changes the number. clang's syntax tree would need all that the headers include.

Prints `path:line: what is wrong` and exits with 1 if anything is.
"""

import json
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
from check_layers import FACE, INCLUDE, NOT_CODE, blank, line_of, without_comments  # noqa: E402

NAMESPACE = "rankloom"
MOST_HEADERS = 25
MOST_NAMES = 100

# Of other packages: what any public header may include, and what some may.
PACKAGES = ["absl/"]
TESTING = {"matchers.h": ["gtest/", "gmock/"], "testing.h": ["gtest/", "gmock/"]}

KINDS = {"class", "struct", "union", "enum", "typedef", "function", "prototype", "variable", "externvar", "namespace", "name"}
SCOPES = {"namespace", "class", "struct", "union", "function", "enum"}
# A class that is declared here and defined elsewhere, which ctags passes over.
DECLARED = re.compile(r"^[ \t]*(?:template\s*<[^;{}]*>\s*)?(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+(\w+)\s*(?::\s*\w+\s*)?;",
                      re.MULTILINE)
# ctags 5.9 knows no concepts.
CONCEPT = re.compile(r"\bconcept\s+(\w+)\s*=")


def headers(root):
    return sorted(file for file in (root / FACE).rglob("*") if file.is_file())


def check_includes(root):
    """Includes that are neither the standard library's nor absl's nor public."""
    for file in headers(root):
        code = without_comments(file.read_text(encoding="utf-8"))
        name = file.relative_to(root / FACE).as_posix()
        for found in INCLUDE.finditer(code):
            quote, header = found.groups()
            if quote == "<" and "/" not in header and "." not in header:
                continue  # the standard library
            if header.startswith("rankloom/") and (root / "include" / header).is_file():
                continue
            if header.startswith(tuple([*PACKAGES, *TESTING.get(name, [])])):
                continue
            where = FACE + name, line_of(code, found.start(2))
            yield *where, f"includes {header}, want the standard library, absl or a public header only"


def tags_of(file):
    """The tags that ctags finds in the header, and the source without comments and texts."""
    command = ["ctags", "--options=NONE", "--language-force=C++", "--kinds-C++=+pxN", "--fields=+neKZ", "--output-format=json",
               "--sort=no", "-I", "ABSL_LOCKABLE,ABSL_SCOPED_LOCKABLE", "-f", "-", str(file)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def scope_at(tags, line):
    """The innermost scope around a line, as (kind, full name)."""
    around = [tag for tag in tags if tag["kind"] in SCOPES and tag["line"] <= line <= tag.get("end", tag["line"])]
    inner = max(around, key=lambda tag: (tag["line"], len(tag.get("scope", ""))), default=None)
    if inner is None:
        return "", ""
    return inner["kind"], f"{inner['scope']}::{inner['name']}" if "scope" in inner else inner["name"]


def names_of(file):
    """Name -> whether more than a declaration of a class stands here, of all that stands in the namespace itself."""
    tags = tags_of(file)
    names = {tag["name"]: True for tag in tags
             if tag["kind"] in KINDS and tag.get("scopeKind") == "namespace" and tag.get("scope") == NAMESPACE and tag["name"] != "internal"}
    code = NOT_CODE.sub(blank, file.read_text(encoding="utf-8"))
    for pattern in (DECLARED, CONCEPT):
        for match in pattern.finditer(code):
            if scope_at(tags, line_of(code, match.start(1))) == ("namespace", NAMESPACE):
                names.setdefault(match.group(1), pattern is CONCEPT)
    return {name: here for name, here in names.items() if not name.startswith(("operator", "__anon"))}


def names_by_header(root):
    """Header -> the names that are its own: of those that have a name, the first that does more than declare a class."""
    by_header = {file.relative_to(root / FACE).as_posix(): names_of(file) for file in headers(root)}
    owner = {}
    for whole in (True, False):
        for header, names in by_header.items():
            for name, here in names.items():
                if here == whole:
                    owner.setdefault(name, header)
    return {header: [name for name in names if owner[name] == header] for header, names in by_header.items()}


def number_of_names(root):
    return sum(map(len, names_by_header(root).values()))


def check_names(root):
    number = number_of_names(root)
    if number > MOST_NAMES:
        yield FACE, 1, f"{number} names in namespace {NAMESPACE}, want at most {MOST_NAMES}; tools/check_face.py --list prints them"


def check_number(root):
    number = len(headers(root))
    if number > MOST_HEADERS:
        yield FACE, 1, f"{number} public headers, want at most {MOST_HEADERS}"


def check(root):
    return [*check_number(root), *check_includes(root), *check_names(root)]


def list_names(root):
    for header, names in names_by_header(root).items():
        print(f"{header}: {len(names)}" + "".join(f"\n  {name}" for name in names))
    print(f"{number_of_names(root)} names in {len(headers(root))} headers")


def main(arguments):
    listing = "--list" in arguments
    paths = [argument for argument in arguments if argument != "--list"]
    root = pathlib.Path(paths[0] if paths else pathlib.Path(__file__).parent.parent)
    if listing:
        list_names(root)
        return 0
    findings = check(root)
    for path, line, what in findings:
        print(f"{path}:{line}: {what}")
    number = len(headers(root))
    print(f"check_face: {number} headers, {number_of_names(root)} names, {len(findings)} findings")
    return 1 if findings or number == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
