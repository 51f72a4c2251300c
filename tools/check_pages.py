#!/usr/bin/env python3
"""Holds the pages (*.md) to the tree that they speak of, and to a form.

    tools/check_pages.py [ROOT]
    tools/check_pages.py --picture     prints the picture of the folders and rooms that docs/architecture.md shows

Runs as the test `pages` and in ./dev lint. Prints `path:line: what is wrong` and exits with 1 if anything is. Things that a page names must exist:
paths, headings that links lead to, RANKLOOM_* variables, test programs, C++ names (`Name::member`, `name()`, `kName`), and commands:
those of ./dev, parts of .ci/run, subcommands of rankloom and of our GDB, options of these, of rankloom-torchrun and of our Python
programs, tests and suites of meson test and ./dev test, targets of ninja, tests that --gtest_filter names for programs of ours.
Lines end within 120 columns (code blocks and comments of C++ sources, too; rows of tables may be longer, since Markdown has no way to
go on in the next line). No paragraph stands twice, docs/README.md names every page, decisions are
numbered without a hole. Comments of C++
and Python, docstrings among them, name their subject with a noun: none begins with "It" or "They", and no sentence of one begins
with "Who", "Whoever", "What" or "Whatever", but for questions. No file holds a merge's markers.
A new exception is one line in OUTSIDE, with its reason.
"""

import fnmatch
import functools
import io
import itertools
import os
import pathlib
import re
import sys
import tokenize

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
from check_layers import LAYERS, NOT_CODE, ON_TOP, ROOMS, blank, line_of  # noqa: E402

COLUMNS = 120
SAME = 80  # characters: shorter paragraphs ("Likewise.") may stand twice
CXX = (".h", ".cc", ".cu", ".cuh")
CODE = (*CXX, ".py", ".pyi", ".sh", ".build", ".in", ".txt")
# The endings of names of files, for names without a folder.
FILES = r"\.(?:h|cc|cu|cuh|py|pyi|md|sh|build|json|csv|proto|supp|in|txt)"

COMMAND = "tools/rankloom_command/command.py"
LAUNCHER = "bridge/torch/rankloom/torch/"

# (page, name, reason): what pages name and the tree does not have. A glob's * crosses folders. An entry that no page needs is a finding.
OUTSIDE = [
    ("CONTRIBUTING.md", "docs/decisions/NNNN-name.md", "NNNN and name are the reader's"),
    ("docs/first-hour.md", "checkpoint_test.cc", "the reader writes it"),
    ("docs/first-hour.md", "hang_test.cc", "the reader writes it"),
    ("docs/first-hour.md", "test_checkpoint.py", "the reader writes it"),
    ("docs/first-hour.md", "search.py", "the reader writes it"),
    ("docs/first-hour.md", "test_hang.py", "the reader writes it"),
    ("CHANGELOG.md", "share/rankloom/gdb.py", "tools/gdb/rankloom.py, as it is installed"),
    ("docs/debugger.md", "average.cc", "the reader writes it"),
    ("docs/debugger.md", "share/rankloom/gdb.py", "tools/gdb/rankloom.py, as it is installed"),
    ("docs/project.md", "average*", "the reader writes them"),
    ("docs/pytorch.md", "torch/testing/*", "a file of PyTorch"),
    ("docs/pytorch.md", "distributed/*.py", "a file of github.com/pytorch/examples"),
    ("*", "--gtest_*", "options of GoogleTest"),
    ("*", "--tb", "an option of pytest"),
    ("*", "--pdb", "an option of pytest"),
    ("docs/pytorch.md", "--lf", "an option of pytest"),
    ("docs/testing.md", "--leak-check", "an option of valgrind"),
    ("docs/testing.md", "--errors-for-leak-kinds", "an option of valgrind"),
    ("*", "rankloom fibers", "the name of a thread"),
]


def strip_comments(text):
    return NOT_CODE.sub(lambda m: blank(m) if m.group(0).startswith(("//", "/*")) else m.group(0), text)


class Tree:
    """The repository under `root`, as the checks ask for it."""

    def __init__(self, root):
        self.root = root
        self.files = []
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(f for f in folders if f == ".ci" or not re.match(r"\.|build|dist$|__pycache__$|.*\.egg-info$", f))
            self.files += sorted((pathlib.Path(folder) / name).relative_to(root).as_posix() for name in names)
        self.names = {path.rsplit("/", 1)[-1] for path in self.files}
        folders = {parent.as_posix() for path in self.files for parent in pathlib.PurePosixPath(path).parents}
        self.everything = {*self.files, *folders}
        self.tops = {path.split("/")[0] for path in self.files if "/" in path}

    def pages(self):
        return [path for path in self.files if path.endswith(".md")]

    @functools.cache  # noqa: B019 (a tree lives as long as the program)
    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    @functools.cached_property
    def code(self):
        """All code, C++ without its comments."""
        paths = [path for path in self.files if path.endswith(CODE) or path in ("dev", ".ci/run")]
        return "\n".join(strip_comments(self.text(path)) if path.endswith(CXX) else self.text(path) for path in paths)

    @functools.cached_property
    def variables(self):
        """RANKLOOM_ names that code reads: from the environment, or as macros."""
        reads = r"(?:getenv\s*\(\s*\"|environ(?:\.get\(|\[)[\"']|\$\{?|#\s*define\s+|-D)(RANKLOOM_\w+)"
        return set(re.findall(reads, self.code))

    @functools.cached_property
    def plain(self):
        """C++ of the library, its tests not among it, without comments, strings and attributes of classes."""
        text = "\n".join(NOT_CODE.sub(blank, self.text(path)) for path in self.files
                         if path.endswith(CXX) and not path.startswith(("tests/", "bench/", "examples/")))
        return re.sub(r"\b(class|struct)\s+(?:(?:ABSL_\w+(?:\([^()]*\))?|\[\[[^\]]*\]\]|alignas\([^()]*\))\s+)*", r"\1 ", text)

    @functools.cached_property
    def words(self):
        return set(re.findall(r"\w+", self.code))

    @functools.cached_property
    def called(self):
        return set(re.findall(r"\b(\w+)\s*\(", self.code))

    @functools.cached_property
    def commands(self):
        return set(re.findall(r"^cmd_([\w-]+)\(\)", self.text("dev") if "dev" in self.files else "", re.MULTILINE))

    @functools.cached_property
    def parts(self):
        return set(re.findall(r"^part_([\w-]+)\(\)", self.text(".ci/run") if ".ci/run" in self.files else "", re.MULTILINE))

    @functools.cached_property
    def subcommands(self):
        """Of rankloom: name -> its options. GDB's take what they want to."""
        text = self.text(COMMAND) if COMMAND in self.files else ""
        of = {variable: name for variable, name in re.findall(r"(\w+) = \w+\.add_parser\(\s*\"([\w-]+)\"", text)}
        options = {name: {"--help"} for name in of.values()}
        for variable, names in re.findall(r"\b(\w+)\.add_argument\(\s*((?:\"[^\"]*\",?\s*)+)", text):
            options.get(of.get(variable), set()).update(re.findall(r"\"(-[\w-]+)\"", names))
        return options

    @functools.cached_property
    def debugger_commands(self):
        gdb = "".join(self.text(path) for path in self.files if path.startswith("tools/gdb/"))
        return set(re.findall(r"__init__\(\"rankloom ([\w-]+)\"", gdb))

    def takes(self, program, option):
        """Whether a Python program of ours reads the option, by argparse or from its arguments."""
        return option == "--help" or re.search(r"[\"' ]" + re.escape(option) + r"[\"'= \]]", self.text(program)) is not None

    def launcher_takes(self, option):
        """Whether rankloom-torchrun does: an option of its own, or one of torchrun's whose value it asks for."""
        files = [path for path in self.files if path.startswith(LAUNCHER)]
        asked = r"\boptions(?:\.|, \")" + option.lstrip("-").replace("-", "_") + r"\b"
        return any(self.takes(path, option) or re.search(asked, self.text(path)) for path in files)

    @functools.cached_property
    def options(self):
        """All options that a program or script of ours takes, tests not among them."""
        paths = [path for path in self.files if path.endswith((".py", ".sh")) or path in ("dev", ".ci/run")]
        text = "\n".join(self.text(path) for path in paths if not path.startswith("tests/"))
        programs = "\n".join(self.text(path) for path in self.files if path.endswith(".cc") and not path.startswith("tests/"))
        declared = set(re.findall(r"add_?(?:argument|option)\(\s*(?:\"-\w\", )?\"(--[\w-]+)\"", text))
        flags = {"--" + name for name in re.findall(r"\bABSL_FLAG\([^,]+, (\w+),", programs)}
        # Words that are compared with an argument, or are a case of a shell's.
        return {"--help", *declared, *flags, *re.findall(r"(?<!\S)\"?(--[a-z][\w-]*)(?:\" in |\)| \]\])", text)}

    @functools.cached_property
    def suites(self):
        """Of meson test."""
        return {found for path in self.files if path.endswith("meson.build")
                for found in re.findall(r"(?:suite: |gtest_programs \+= \{)'(\w+)'", self.text(path))}

    @functools.cached_property
    def types(self):
        """Name -> (names of the bases, body) of each class, struct and enum of this name."""
        types = {}
        head = r"\b(?:class|struct|union|enum(?:\s+class)?)\s+(?:\w+::)*(\w+)\b([^;{}()]*){"
        for found in re.finditer(head, self.plain):
            depth = 1
            for brace in re.finditer(r"[{}]", self.plain[found.end():found.end() + 60_000]):
                depth += 1 if brace.group(0) == "{" else -1
                if depth == 0:
                    body = self.plain[found.end():found.end() + brace.start()]
                    types.setdefault(found.group(1), []).append((re.findall(r"\b[A-Z]\w*", found.group(2)), body))
                    break
        return types

    @functools.cache  # noqa: B019
    def members(self, name):
        """All words in the bodies of the types of this name and of their bases; None if there is no such type."""
        if name not in self.types:
            return None
        words = {word for _, body in self.types[name] for word in re.findall(r"\w+", body)}
        for base in {base for bases, _ in self.types[name] for base in bases} - {name}:
            words |= self.members(base) or set()
        return words

    def has_path(self, name, folder):
        """Whether the path, or at least one file of the glob, exists: from the root, beside the page, or in an include path of users."""
        name = name.rstrip("/")
        places = [name, os.path.normpath(os.path.join(folder, name)), "include/" + name]
        if any(c in name for c in "*?"):
            return any(fnmatch.fnmatchcase(path, place) for place in places for path in self.everything)
        return any(place in self.everything for place in places) or self.is_target(name)

    def is_built(self, path):
        """Whether build*/FOLDER/NAME is what FOLDER's meson.build makes."""
        folder, _, name = path.partition("/")[2].rpartition("/")
        file = f"{folder}/meson.build".lstrip("/")
        return not name or (file in self.files and re.search(r"'" + re.escape(name) + "'", self.text(file)) is not None)

    def is_test(self, name):
        """Whether a meson.build has a test of this name."""
        return any(re.search(r"\btest\('" + name + "'", self.text(path)) for path in self.files if path.endswith("meson.build"))

    def is_target(self, name):
        """Whether ninja makes it: FOLDER/NAME as a meson.build has it, or the FOLDER_NAME of a test program."""
        return self.is_built("build/" + name) or (name.startswith("tests/") and self.is_program(re.sub(r"^tests/(?:\w+/)*[a-z]+_", "", name)))

    @functools.cached_property
    def tests(self):
        return "\n".join(self.text(path) for path in self.files if path.startswith("tests/") and path.endswith(CXX))

    def is_program(self, name):
        """Whether a test program or test is called so."""
        wanted = re.compile(r"'(?:\w+/)?" + name + r"(?:\.cc)?'")
        return any(wanted.search(self.text(path)) for path in self.files if path.endswith("meson.build")) or f"{name}.py" in self.names


class Page:
    """The lines of a page and what each is."""

    def __init__(self, path, text):
        self.path = path
        self.folder = os.path.dirname(path)
        self.lines = text.split("\n")
        self.kinds = []  # "text", "code", "table", "heading" or "blank"
        fence, listed = None, False
        for i, line in enumerate(self.lines):
            mark = re.match(r"\s*(```+|~~~+)", line)
            before = self.kinds[-1] if self.kinds else "blank"
            if fence is not None or mark:
                self.kinds.append("code")
                fence = mark.group(1) if fence is None else None if mark and line.strip() == fence else fence
            elif not line.strip():
                self.kinds.append("blank")
            elif line.startswith("    ") and ((not listed and before in ("blank", "code", "heading")) or
                                              (before == "code" and self.lines[i - 1].startswith("    "))):
                self.kinds.append("code")
            elif line.lstrip().startswith("|"):
                self.kinds.append("table")
            elif re.match(r"#+ ", line):
                self.kinds.append("heading")
                listed = False
            else:
                self.kinds.append("text")
                if re.match(r"\s*([-*]|\d+\.) ", line):
                    listed = True
                elif not line.startswith(" ") and before == "blank":
                    listed = False

    def numbered(self, *kinds):
        return [(i + 1, line) for i, (line, kind) in enumerate(zip(self.lines, self.kinds, strict=True)) if kind in kinds]

    def paragraphs(self):
        """(first line, text) of each paragraph and each item of a list, spaces folded."""
        start, words = 0, []
        for i, (line, kind) in enumerate(itertools.chain(zip(self.lines, self.kinds, strict=True), [("", "blank")])):
            if words and (kind != "text" or re.match(r"\s*([-*]|\d+\.) ", line)):
                yield start, " ".join(words)
                words = []
            if kind == "text":
                start = start if words else i + 1
                words += line.split()

    def spans(self):
        """(line, text) of what stands in backticks outside of code blocks; a span may go over the end of a line."""
        block, lines = "", []
        for i, (line, kind) in enumerate(itertools.chain(zip(self.lines, self.kinds, strict=True), [("", "blank")])):
            if kind in ("blank", "code") or (kind in ("table", "heading") and block):
                for found in re.finditer(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", block, re.DOTALL):
                    yield lines[block.count("\n", 0, found.start())], " ".join(found.group(2).split())
                block, lines = "", []
            if kind not in ("blank", "code"):
                block += line + "\n"
                lines.append(i + 1)

    def anchors(self):
        heads = [re.sub(r"^#+ ", "", line) for _, line in self.numbered("heading")]
        return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def braces(name):
    """a.{h,cc} -> a.h, a.cc"""
    found = re.match(r"(.*)\{([^{}]*)\}(.*)$", name)
    return [found.group(1) + part + found.group(3) for part in found.group(2).split(",")] if found else [name]


def check_paths(page, tree):
    tops = "|".join(re.escape(top) for top in sorted(tree.tops))
    anchored = re.compile(r"(?<![\w/.~$<{-])((?:" + tops + r")/[\w./*?{},<>+-]*)")
    spans = list(page.spans())
    seen = set()
    # Names that begin with a folder of ours, in text, tables and code alike.
    for line, text in enumerate(page.lines, 1):
        for found in anchored.finditer(text):
            names = braces(found.group(1).rstrip(".,;:"))
            for name in names:
                name = re.sub(r":\d+$", "", name)
                if "<" in name:  # a placeholder: what stands before it must exist
                    name = name.split("<")[0].rpartition("/")[0]
                elif name.endswith("-") or "//" in name or ">" in name:
                    continue
                if tree.has_path(name, page.folder):
                    continue
                if page.kinds[line - 1] == "text" and not re.search(FILES + r"$|/$|\*", name) and ("`" + name) not in text:
                    continue  # "and/or", in prose
                seen.add((line, name))
                yield line, name, f"{name} does not exist"
    for line, span in spans:
        if re.fullmatch(r"(?:[\w.*-]+/)*[\w.*{},-]+" + FILES + r"(?::\d+)?", span):
            for name in braces(re.sub(r":\d+$", "", span)):
                if (line, name) in seen or tree.has_path(name, page.folder):
                    continue
                if "/" in name or not (name in tree.names or ("*" in name and fnmatch.filter(tree.names, name))):
                    yield line, name, f"{name} does not exist"
        elif re.fullmatch(r"build[\w-]*/[\w./-]*", span) and not tree.is_built(span):
            yield line, span, f"{span} is built by no meson.build"
    for line, text in page.numbered("text", "table", "heading"):
        for found in re.finditer(r"\]\(([^()\s]+)\)", text):
            target = found.group(1)
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            path = os.path.normpath(os.path.join(page.folder, name)) if name else page.path
            if path not in tree.everything and (line, name) not in seen:
                yield line, target, f"link to {target}, which does not exist"
            elif anchor and path in tree.files and path.endswith(".md") and anchor not in Page(path, tree.text(path)).anchors():
                yield line, target, f"link to {target}: no such heading"


def commands_of(page):
    """(line, what is typed) of spans and of lines of code, without prompt, variables and comment; lines that go on are one."""
    texts = [(line, span) for line, span in page.spans()]
    whole, first = "", 0
    for line, text in page.numbered("code"):
        first = first if whole else line
        whole += " " + re.sub(r"^\$ ", "", text.strip())
        if not text.endswith("\\"):
            texts.append((first, whole))
            whole = ""
        whole = whole.rstrip("\\")
    for line, text in texts:
        for one in re.split(r"\s(?:&&|\|\|?|;)\s", re.sub(r"\s#\s.*", "", text)):
            yield line, re.sub(r"^(?:[A-Z_]+=\S* )+", "", one.strip())


# Of our build folder, perhaps behind a wrapper: "gdb --args build/...".
FILTERED = re.compile(r"(?:\S+ )*?(?P<program>(?:\./)?build[\w-]*/\S+)\s(?:.*\s)?--gtest_filter=(?P<filter>\S+)")


def wrong_rankloom(command, tree):
    found = re.match(r"rankloom ([a-z][\w-]*)(?=\s|$)(.*)", command)
    if found is None or (found.group(1) in tree.debugger_commands and found.group(1) not in tree.subcommands):
        return
    name, rest = found.groups()
    if name not in tree.subcommands:
        yield f"rankloom {name}", f"{name} is no command of rankloom"
        return
    for option in re.findall(r"(?<=\s)(--?[a-z][\w-]*)", rest):
        if option not in tree.subcommands[name]:
            yield f"rankloom {name} {option}", f"{option} is no option of rankloom {name}"


def wrong_launch(command, tree):
    found = re.match(r"(rankloom-torchrun|python3? -m rankloom\.torch)\s(.*)", command)
    # Words behind the script are the script's own.
    for option in re.findall(r"(?<!\S)(--[a-z][\w-]*)", re.split(r"\S+\.py\b", found.group(2))[0]) if found else ():
        if not tree.launcher_takes(option):
            yield f"rankloom-torchrun {option}", f"{option} is no option of rankloom-torchrun"


def wrong_program(command, tree):
    found = re.match(r"(?:python3? )?((?:\w+/)+\w+\.py)\s(.*)", command)
    for option in re.findall(r"(?<!\S)(--[a-z][\w-]*)", found.group(2)) if found and found.group(1) in tree.files else ():
        if not tree.takes(found.group(1), option):
            yield f"{found.group(1)} {option}", f"{option} is no option of {found.group(1)}"


def wrong_parts(command, tree):
    found = re.match(r"(?:\./)?\.ci/run((?:\s+[\w-]+)*)$", command)
    for part in found.group(1).split() if found else ():
        if part not in tree.parts:
            yield f".ci/run {part}", f"{part} is no part of .ci/run"


def wrong_tests(command, tree):
    found = re.match(r"(?:meson test|\./dev test)(?=\s|$)(.*)", command)
    words = found.group(1).split() if found else []
    for before, word in zip(["", *words], words, strict=False):
        if before in ("--suite", "--no-suite") and word not in tree.suites:
            yield f"--suite {word}", f"{word} is no suite of tests"
        elif re.fullmatch(r"\w+", word) and not before.startswith("-") and not tree.is_program(word) and not tree.is_test(word):
            yield word, f"{word} is no test"
    found = re.match(r"ninja(?=\s|$)(.*)", command)
    words = found.group(1).split() if found else []
    for before, word in zip(["", *words], words, strict=False):
        if not word.startswith("-") and before not in ("-C", "-j", "-k") and not tree.is_target(word):
            yield f"ninja {word}", f"{word} is no target of a meson.build"


def wrong_filter(command, tree):
    found = FILTERED.match(command)
    if found is None:
        return
    if not tree.is_target(found.group("program").removeprefix("./").partition("/")[2]):
        yield found.group("program"), f"{found.group('program')} is built by no meson.build"
    for name in re.findall(r"(?<![\w*?])(\w+)\.", found.group("filter").strip("'\"")):
        if re.search(r"\bTEST(?:_F|_P)?\(\s*" + name + r"\b|TYPED_TEST(?:_P)?\(\s*" + name + r"\b", tree.tests) is None:
            yield name, f"{name} is no group of tests"


def wrong_option(command, tree):
    found = re.fullmatch(r"(--[a-z][\w-]*)(?:[ =].*)?", command)
    if found and found.group(1) not in tree.options and not tree.launcher_takes(found.group(1)):
        yield found.group(1), f"{found.group(1)} is no option of a program of ours"


def check_commands(page, tree):
    for line, text in enumerate(page.lines, 1):
        for found in re.finditer(r"(?<![\w/])\./dev ([a-z][\w-]*)", text):
            if found.group(1) not in tree.commands:
                yield line, found.group(0), f"{found.group(0)} is no command of ./dev"
    for line, command in commands_of(page):
        for wrong in (wrong_rankloom, wrong_launch, wrong_program, wrong_parts, wrong_tests, wrong_filter, wrong_option):
            for name, what in wrong(command, tree):
                yield line, name, what


def check_variables(page, tree):
    for line, text in enumerate(page.lines, 1):
        for name in sorted(set(re.findall(r"\bRANKLOOM_[A-Z_]*[A-Z]\b", text))):
            if name not in tree.variables:
                yield line, name, f"{name} is read nowhere"


def check_names(page, tree):
    for line, span in page.spans():
        scoped = re.fullmatch(r"(?:rankloom::|internal::)?([A-Z]\w*)::(~?\w+)(?:<.*>)?(?:\(.*\))?", span)
        call = re.fullmatch(r"(?:rankloom::|internal::)?([a-z][a-z0-9_]*)\(.*\)", span)
        value = re.fullmatch(r"(?:\w+::)*(k[A-Z]\w*)", span)
        kind = re.fullmatch(r"(?:rankloom::|internal::)?([A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+)(?:<\w+>)?", span)
        program = re.fullmatch(r"(\w+_(?:test|campaign))", span)
        if scoped:
            members = tree.members(scoped.group(1))
            if members is None:
                yield line, span, f"{span}: no class {scoped.group(1)} in the library"
            elif scoped.group(2).lstrip("~") not in members:
                yield line, span, f"{span}: {scoped.group(1)} has no such member"
        elif program:
            if not tree.is_program(program.group(1)):
                yield line, span, f"{span} is no test program"
        elif call and call.group(1) not in tree.called:
            yield line, span, f"{call.group(1)}() is nowhere in the code"
        elif value and value.group(1) not in tree.words:
            yield line, span, f"{value.group(1)} is nowhere in the code"
        elif kind and kind.group(1) not in tree.words:
            yield line, span, f"{kind.group(1)} is nowhere in the code"


def check_form(page, _tree):
    for line, text in page.numbered("text", "heading", "code"):
        can_be_broken = re.match(r"\s*(?:[-*] |\d+\. )?\S+\s+\S", text) is not None
        if len(text) > COLUMNS and can_be_broken:
            yield line, "", f"{len(text)} columns, want at most {COLUMNS}"
    first = {}
    for line, text in page.paragraphs():
        if len(text) > SAME and text in first:
            yield line, "", f"this paragraph stands in line {first[text]} already"
        first.setdefault(text, line)
    labels, line_of_heading = {}, 0
    headings = [line for line, _ in page.numbered("heading")]
    for line, text in page.paragraphs():
        heading = max((h for h in headings if h < line), default=0)
        if heading != line_of_heading:
            labels, line_of_heading = {}, heading
        found = re.match(r"([A-Z][\w ]{2,30}): ", text)
        if found and found.group(1) in labels:
            yield line, "", f'"{found.group(1)}:" begins the paragraph in line {labels[found.group(1)]}, too: make them one'
        if found:
            labels.setdefault(found.group(1), line)


PAGE_CHECKS = [check_paths, check_commands, check_variables, check_names, check_form]


def check_index(tree):
    if "docs/README.md" in tree.files:
        text = tree.text("docs/README.md")
        for path in tree.pages():
            if re.fullmatch(r"docs/[^/]+\.md", path) and path != "docs/README.md" and f"({path[5:]})" not in text:
                yield "docs/README.md", 1, f"no link to {path[5:]}"


def check_decisions(tree):
    paths = [path for path in tree.pages() if path.startswith("docs/decisions/")]
    for number, path in enumerate(paths, 1):
        if not path.startswith(f"docs/decisions/{number:04}-"):
            yield path, 1, f"decisions are numbered without a hole: want {number:04}"
        elif not tree.text(path).startswith(f"# {number}. "):
            yield path, 1, f'the heading of a decision begins with its number, want "# {number}. "'


def picture():
    """The folders and their rooms, as docs/architecture.md shows them: each includes what stands below it or left of it."""
    rows = [("   ".join(ON_TOP), ""), *((layer, " <- ".join(ROOMS.get(layer, []))) for layer in reversed(LAYERS))]
    wide = max(len(name) for name, _ in rows[1:])
    texts = [rows[0][0], *(f"{name.ljust(wide)}  {rooms}".rstrip() for name, rooms in rows[1:])]
    width = max(map(len, texts))
    edge = "+" + "-" * (width + 2) + "+"
    return "\n".join([edge, *itertools.chain.from_iterable((f"| {text.ljust(width)} |", edge) for text in texts)])


def check_picture(tree):
    path = "docs/architecture.md"
    if path in tree.files:
        shown = "\n".join(line.strip() for _, line in Page(path, tree.text(path)).numbered("code"))
        lacks = [name for name in [*LAYERS, *ON_TOP, *itertools.chain.from_iterable(ROOMS.values())] if not re.search(rf"\b{name}\b", shown)]
        if picture() not in shown:
            yield path, 1, (f"the picture of the rooms is not that of tools/check_layers.py{': it lacks ' if lacks else ''}{', '.join(lacks)}; "
                            "tools/check_pages.py --picture prints it")


def check_rooms(tree):
    path = "CONTRIBUTING.md"
    rooms = [f"{folder}/{room}" for folder in ROOMS for room in ROOMS[folder]] if path in tree.files else []
    for room in [*LAYERS, *rooms] if rooms else []:
        if re.search(r"^\| `" + room + "` \\|", tree.text(path), re.MULTILINE) is None:
            yield path, 1, f"the table of the folders has no row for {room}"


def check_columns(tree):
    for path in tree.files:
        for line, text in enumerate(tree.text(path).split("\n"), 1) if path.endswith(CXX) else ():
            if len(text) > COLUMNS and re.search(r"(^|\s)//.*\S\s+\S", text) is not None:
                yield path, line, f"{len(text)} columns, want at most {COLUMNS}"


def cxx_comments(text):
    """(line, text, the code and spaces before it) of each line of a // comment."""
    for found in NOT_CODE.finditer(text) if "//" in text else ():
        if found.group(0).startswith("//"):
            yield line_of(text, found.start()), found.group(0).lstrip("/!"), text[text.rfind("\n", 0, found.start()) + 1:found.start()]


DOCSTRING = " " * 1000  # before a line of one, so that no comment is a part of it


def python_comments(text):
    """As cxx_comments(), of # comments and docstrings."""
    before = tokenize.NEWLINE
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string.lstrip("#!:"), token.line[:token.start[1]]
            elif token.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
                lines = re.sub(r"^\w*(\"\"\"|'''|\"|')|(\"\"\"|'''|\"|')$", "", token.string).split("\n")
                yield from ((token.start[0] + i, line, DOCSTRING) for i, line in enumerate(lines))
            if token.type not in (tokenize.NL, tokenize.COMMENT):
                before = token.type
    except (tokenize.TokenError, IndentationError):
        return  # a template, or a file with a mistake on purpose


def blocks(comments):
    """The comments as blocks: [(line, text)], one for lines that follow each other in one column, with no code and no empty line between."""
    block, column = [], 0
    for line, text, before in comments:
        if block and (before.strip() or not text.strip() or line != block[-1][0] + 1 or len(before) != column):
            yield block
            block = []
        if text.strip():
            block.append((line, text.strip()))
        column = len(before)
    if block:
        yield block


NO_NOUN_FIRST = re.compile(r"(It|They|Who|Whoever|it|they|who|whoever)\s")
NO_NOUN = re.compile(r"(?:^|(?<=[.!?;:])\s|(?<=[.!?][)\"])\s)(What|Whatever|Who|Whoever)\s[^.!?]*([.!?]?)")


def check_subjects(tree):
    """A comment names its subject. "What" and "Who" are found at the beginning of each sentence, "It" and "They" at that of a comment."""
    for path in tree.files:
        comments = cxx_comments if path.endswith(CXX) else python_comments if path.endswith(".py") else None
        for block in blocks(comments(tree.text(path))) if comments is not None else ():
            text, starts = "", []  # where each line begins in the text
            for line, words in block:
                starts.append((len(text), line))
                text += words + " "
            first = NO_NOUN_FIRST.match(text)
            found = [(first.start(1), first.group(1))] if first is not None else []
            found += [(one.start(1), one.group(1)) for one in NO_NOUN.finditer(text) if one.group(2) != "?"]
            for at, word in dict(found).items():
                line = max(line for start, line in starts if start <= at)
                yield path, line, f'a comment, or a sentence in it, begins with "{word}", want a noun for a subject'


# The lines that git leaves of two sides of a merge; "=======" alone underlines headings, too.
MERGE_MARKER = re.compile(r"^(<{7}|>{7}|\|{7})(?: .*)?$", re.MULTILINE)


def check_merges(tree):
    """No file holds both sides of a merge."""
    for path in tree.files:
        text = tree.text(path)
        for marker in MERGE_MARKER.finditer(text):
            yield path, line_of(text, marker.start()), "a merge's marker: one of both sides has to go"


TREE_CHECKS = [check_merges, check_index, check_decisions, check_picture, check_rooms, check_columns, check_subjects]


def check(root, outside=None):
    """All findings under `root`, as (path, line, text), and how many pages were read."""
    tree, needed = Tree(root), set()
    outside = OUTSIDE if outside is None else outside
    findings = [finding for one in TREE_CHECKS for finding in one(tree)]
    for path in tree.pages():
        page = Page(path, tree.text(path))
        for one in PAGE_CHECKS:
            for line, name, what in one(page, tree):
                excuses = [entry[:2] for entry in outside if fnmatch.fnmatchcase(path, entry[0]) and fnmatch.fnmatchcase(name, entry[1])]
                needed.update(excuses)
                findings += [] if excuses else [(path, line, what)]
    findings += [("tools/check_pages.py", 1, f"OUTSIDE: {page} needs no exception for {name}") for page, name, _ in outside
                 if (page, name) not in needed]
    return sorted(findings), len(tree.pages())


def main(arguments):
    if arguments == ["--picture"]:
        print(picture())
        return 0
    findings, count = check(pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).resolve().parent.parent))
    for path, line, what in findings:
        print(f"{path}:{line}: {what}")
    print(f"check_pages: {count} pages, {len(findings)} findings")
    return 1 if findings or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
