#!/usr/bin/env python3
"""A public header as Doxygen is to read it: its comments marked as documentation, their text as reStructuredText.

    comments.py HEADER                 prints it

The last parameter of most functions, the line of their caller, is left out: nobody gives it. So are bodies of functions.
"""

import itertools
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
from plain_text import to_rst  # noqa: E402

CALLER = re.compile(r"(?:,\s*)?\bCodeSite code = CodeSite::here\(\)")
COMMENT = re.compile(r"^(\s*)// ?(.*)$")
TRAILING = re.compile(r"^(\s*\S.*?[;,{}]|\s*k\w+)\s+// (.*)$")


def documented(lines, indent):
    """The comment as Doxygen takes it."""
    text = to_rst(lines, "cpp")
    return [f"{indent}/// \\verbatim embed:rst:leading-slashes", *(f"{indent}/// {line}".rstrip() for line in text), f"{indent}/// \\endverbatim"]


def floating(source):
    """The comments that belong to no declaration, as lists of lines: what a header says of all that it holds."""
    return [lines for lines, alone in blocks(source)[1] if alone and not lines[0].startswith("--- ")]


def of_namespace(source, name):
    """The comment of a namespace within rankloom, as lines; none, if it has none."""
    for before, line in itertools.pairwise(blocks(source)[0]):
        if line == f"namespace {name} {{" and isinstance(before, tuple):
            return before[1]
    return []


def blocks(source):
    """The lines, comments as lists of their lines, and all comments with whether they stand alone."""
    out, comments, block = [], [], None
    lines = source.split("\n")
    for i, line in enumerate(lines):
        found = COMMENT.match(line)
        if found and not found.group(2).startswith("NOLINT"):
            if block is None:
                block = (found.group(1), [])
                out.append(block)
            block[1].append(found.group(2))
            if i + 1 == len(lines) or not COMMENT.match(lines[i + 1]):
                comments.append((block[1], not lines[i + 1 : i + 2] or not lines[i + 1].strip()))
                out[-1] = (*block, comments[-1][1])
                block = None
        else:
            out.append(line)
    return out, comments


def filtered(source):
    # Sphinx reads no initializer with names of members.
    source = re.sub(r"^(\s*)(\w[\w:]* \w+) = (\{\.[^;]*\});", r"\1// By default `\3`.\n\1\2;", source, flags=re.MULTILINE)
    out, in_section = [], False
    for item in blocks(CALLER.sub("", source))[0]:
        if isinstance(item, tuple):
            indent, lines, alone = item
            if lines[0].startswith("--- "):
                out += [f"{indent}///@}}"] * in_section
                title = re.split(r"[.:,] ", lines[0][4:])[0]
                out += [f"{indent}/// @name {title[0].upper()}{title[1:]}", f"{indent}///@{{"]
                in_section = True
            elif not alone:
                out += documented(lines, indent)
            continue
        if in_section and re.match(r"\s*(private|protected|public):", item):
            out.append("///@}")
            in_section = False
        trailing = TRAILING.match(item)
        if trailing and not trailing.group(2).startswith("NOLINT") and trailing.group(1).strip() not in ("}", "{"):
            indent = re.match(r"\s*", item).group(0)
            text = trailing.group(2)
            out += [*documented([text[0].upper() + text[1:] if re.match(r"[a-z]+([ ,.:;]|$)", text) else text], indent), trailing.group(1)]
        else:
            out.append(item)
    return "\n".join(out)


if __name__ == "__main__":
    print(filtered(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")))
