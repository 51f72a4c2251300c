"""Plants what is wrong in a page and sees that tools/check_pages.py finds each, and finds nothing in pages that are right."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
sys.dont_write_bytecode = True
import check_pages  # noqa: E402
from check_layers import LAYERS, ON_TOP, ROOMS  # noqa: E402

# The tree that the pages below speak of.
TREE = [
    ("dev", "cmd_build() {\n  :\n}\ncmd_test() {\n  :\n}\ncmd_gpu-build() {\n  : ${RANKLOOM_OF_THE_SHELL:-}\n}\n"),
    ("sim/base/task.h", "// Ghost::walk() kGhost GhostTask ghost()\n#define RANKLOOM_MACRO 1\n"
                        "class ABSL_LOCKABLE Named { public: int name(); };\n"
                        "class [[nodiscard]] Task final : public Named { public: void reach(); int ahead; };\n"
                        "enum class ChoiceKind : uint8_t { kNextTask };\n"),
    ("sim/base/task.cc", 'auto* e = std::getenv("RANKLOOM_SEED"); auto s = "RANKLOOM_PRINTED";\n'),
    ("sim/meson.build", "task_src = files('base/task.cc')\n"),
    ("tests/sim/base/task_test.cc", "TEST(A, B) {}\n"),
    ("tests/sim/meson.build", "gtest_programs += {'sim': {'tests': ['base/task_test', 'base/fibers_test']}}\n"),
    ("bridge/run.py", 'import os\nos.environ["RANKLOOM_OF_PYTHON"]\n\ndef run_ranks(n):\n    pass\n'),
    ("docs/other.md", "# Other page\n\n## One more: heading\n\nText.\n"),
    ("examples/meson.build", "executable('show')\n"),
    (".ci/run", "part_lint() {\n  :\n}\n"),
    ("tools/rankloom_command/command.py",
     'report = commands.add_parser("report", help="a page")\nreport.add_argument("-o", "--output")\n'
     'shown = commands.add_parser(\n    "show")\nshown.add_argument(\n    "--rank", type=int)\n'),
    ("tools/gdb/commands.py", 'class Stacks(gdb.Command):\n    def __init__(self):\n        super().__init__("rankloom stacks", 1)\n'),
    ("tools/check_all.py", 'write = "--write" in arguments\n'),
    ("bridge/torch/rankloom/torch/_torchrun.py", 'ours.add_argument("--seed")\nlocal = options.nnodes, getattr(options, "role", None)\n'),
    ("examples/show.cc", 'ABSL_FLAG(int, epochs, 1, "so many");\n'),
]

LONG = "A paragraph of more than eighty characters, which would be read twice if it stood in two places."

# (a line of a page, a part of what must be said)
PLANTED = [
    ("See `sim/base/rask.h`.", "sim/base/rask.h does not exist"),
    ("See sim/base/rask.h in plain text.", "sim/base/rask.h does not exist"),
    ("See `sim/brace/`.", "sim/brace/ does not exist"),
    ("See `sim/brace`.", "sim/brace does not exist"),
    ("See `rask.h`.", "rask.h does not exist"),
    ("See `sim/base/*_policy.cc`.", "sim/base/*_policy.cc does not exist"),
    ("See `sim/base/task.{h,py}`.", "sim/base/task.py does not exist"),
    ("See `tests/<folder>/x` and `tests/rim/<folder>/x`.", "tests/rim does not exist"),
    ("| a | `sim/base/rask.h` |", "sim/base/rask.h does not exist"),
    ("    $ cat sim/base/rask.h", "sim/base/rask.h does not exist"),
    ("See [it](docs/rother.md).", "docs/rother.md does not exist"),
    ("See [it](rother.md).", "link to rother.md, which does not exist"),
    ("See [it](docs/other.md#two).", "no such heading"),
    ("See `examples/hide`.", "examples/hide does not exist"),
    ("Run `build/examples/hide`.", "is built by no meson.build"),
    ("Run `./dev bild`.", "./dev bild is no command"),
    ("    ./dev bild", "./dev bild is no command"),
    ("Run `.ci/run lint link`.", "link is no part of .ci/run"),
    ("    $ .ci/run link", "link is no part of .ci/run"),
    ("Run `rankloom shows run.rlrun`.", "shows is no command of rankloom"),
    ("    rankloom shows run.rlrun", "shows is no command of rankloom"),
    ("    make && RANKLOOM_SEED=7 rankloom shows run.rlrun | less", "shows is no command of rankloom"),
    ("| a page | `rankloom report --rank 3 a.rlrun` |", "--rank is no option of rankloom report"),
    ("    rankloom show --rank 3 --output a.html  # a page", "--output is no option of rankloom show"),
    ("Run `rankloom-torchrun --sed 7 train.py`.", "--sed is no option of rankloom-torchrun"),
    ("    python -m rankloom.torch --nodes 2 train.py", "--nodes is no option of rankloom-torchrun"),
    ("Run `tools/check_all.py --wirte`.", "--wirte is no option of tools/check_all.py"),
    ("    python3 tools/check_all.py . --wirte", "--wirte is no option of tools/check_all.py"),
    ("    meson test -C build ghost", "ghost is no test"),
    ("Run `meson test -C build --suite ghosts`.", "ghosts is no suite of tests"),
    ("Run `./dev test --suite ghosts`.", "ghosts is no suite of tests"),
    ("    ninja -C build ghost", "ghost is no target"),
    ("    build/tests/sim_ghost_test --gtest_filter=A.B", "build/tests/sim_ghost_test is built by no meson.build"),
    ("    $ build/tests/sim_task_test --gtest_brief=1 --gtest_filter='A.*:Ghost.B'", "Ghost is no group of tests"),
    ("Say `--wirte`.", "--wirte is no option of a program of ours"),
    ("Set `RANKLOOM_SEEDS`.", "RANKLOOM_SEEDS is read nowhere"),
    ("    RANKLOOM_SEEDS=7 ./program", "RANKLOOM_SEEDS is read nowhere"),
    ("Set `RANKLOOM_PRINTED`.", "RANKLOOM_PRINTED is read nowhere"),
    ("`Task::walk`", "Task has no such member"),
    ("`Task::walk(int)`", "Task has no such member"),
    ("`Ghost::walk()`", "no class Ghost"),
    ("`GhostTask`", "GhostTask is nowhere in the code"),
    ("`ghost()`", "ghost() is nowhere in the code"),
    ("`kGhost`", "kGhost is nowhere in the code"),
    ("`ghost_test`", "ghost_test is no test program"),
    ("a word " * 18, "126 columns, want at most 120"),
    ("- a word " * 14, "columns, want at most 120"),
    ("    " + "output " * 18, "130 columns, want at most 120"),
    ("Streams: one.\n\nStreams: two.", '"Streams:" begins the paragraph'),
]

CLEAN = [
    "`sim/base/task.h`, sim/base/task.cc, `task.h`, `sim/base/`, `sim/base`, `sim/base/task.*`, `sim/base/task.{h,cc}`, `sim/base/task.h:12`.",
    "[it](docs/other.md), [there](docs/other.md#one-more-heading), [here](#page), [net](https://example.org/a.md).",
    "`examples/show`, `build/examples/show`, `build/`, `tests/<folder>/x_test.cc`, `train.cc:22 is no file of ours`.",
    "`./dev build` and `./dev gpu-build`, `./dev`; `RANKLOOM_SEED`, `RANKLOOM_OF_PYTHON`, `RANKLOOM_OF_THE_SHELL`, `RANKLOOM_MACRO`, `RANKLOOM_*`.",
    "`Task::reach()`, `Task::ahead`, `Task::name()`, `ChoiceKind::kNextTask`, `kNextTask`, `run_ranks(4)`, `std::ghost()`, `getGhost()`.",
    "`task_test`, `fibers_test`, sim or bench/and so on, a `word`, `torch.ghost()`.",
    "| " + "a table may be wide " * 10 + " |",
    "    " + "a-word-that-cannot-be-broken" * 5,
    "`.ci/run`, `.ci/run lint`, `rankloom report a.rlrun -o a.html`, `rankloom show --rank 3 a`, `rankloom stacks`, `rankloom`.",
    "    rankloom: rank 1 hangs\n    gdb -ex 'rankloom ghosts' ./show && rankloom report \\\n        --output a.html  # a page, --not an option",
    "`rankloom-torchrun --seed 7 --nnodes 2 --role x train.py --ghost`, `python -m rankloom.torch --seed 7 -m ghost`, `pip install ninja ghost`.",
    "`tools/check_all.py --write`, `python3 tools/check_all.py --help`, `train.py --ghost`, `--epochs 3`, `--output`, `--write`, `--nnodes`.",
    "`meson test -C build task_test`, `./dev test --suite sim`, `ninja -C build -j 2 tests/sim_task_test`, `ninja -C build examples/show`.",
    "`build/tests/sim_task_test --gtest_filter='A.B:-*Slow'`, `./my_test --gtest_filter=Ghost.*`.",
    "[" + "a-link-that-cannot-be-broken" * 5 + "](docs/other.md)",
]

# (file, text, line, the word that stands there for a noun)
NO_NOUN = [
    ("sim/a.h", "int a;\n// It waits.\n", 2, "It"),
    ("sim/a.h", "  // They wait.\n", 1, "They"),
    ("sim/a.cu", "// Who waits.\n", 1, "Who"),
    ("sim/a.h", "// Whoever waits.\n", 1, "Whoever"),
    ("sim/a.h", "/// It waits.\n", 1, "It"),
    ("sim/a.cc", "int a;  // it waits\n", 1, "it"),
    ("sim/a.cc", "int a;  // What waits.\n", 1, "What"),
    ("sim/a.cc", 'auto a = "//";  // whoever waits\n', 1, "whoever"),
    ("sim/a.h", "// What a rank holds.\n", 1, "What"),
    ("sim/a.h", "// Holds it. What a rank holds goes with it.\n", 1, "What"),
    ("sim/a.h", "// Holds (as a rank.) Whatever a rank holds.\n", 1, "Whatever"),
    ("sim/a.h", "// Holds it: Who waits.\n", 1, "Who"),
    ("sim/a.h", "// The lock.\n// Errors: none. What\n// a rank holds.\n", 2, "What"),
    ("sim/a.h", "// The lock.\n//\n// It waits.\n", 3, "It"),
    ("sim/a.cc", "int a;  // the rank\n// It waits.\n", 2, "It"),
    ("sim/a.cc", "int a;  // the rank,\n        // It waits. Who waits.\n", 2, "Who"),
    ("tests/a.py", '"""The rank."""\n# It waits.\n', 2, "It"),
    ("tests/a.py", "a = 1\n# What a rank holds.\n", 2, "What"),
    ("tests/a.py", "a = 1  # it waits\n", 1, "it"),
    ("tests/a.py", '"""What a rank holds."""\n', 1, "What"),
    ("tests/a.py", 'def f():\n    """The rank.\n\n    It waits.\n    """\n', 4, "It"),
    ("tests/a.py", "class A:\n    r'''Holds it. Who waits.'''\n", 2, "Who"),
]

NOUNS = [
    ("sim/a.h", "// Its task waits.\nint a;  // The rank\n        // who waits, and They.\nint It;\n"),
    ("sim/a.h", "// The rank. It waits, and they wait: what it holds, whoever asks.\n"),
    ("sim/a.h", "// What does a rank hold? All.\n// What::kRead, WHO: \"It\"\n"),
    ("sim/a.cc", 'auto a = "// It waits."; auto b = R"(\n// What waits.\n)";\n'),
    ("sim/a.txt", "// It is no C++.\n# It is no Python.\n"),
    ("tests/a.py", 'a = "# It waits"\nb = """What waits."""\nf("""\n# It waits.\n""")\n'),
    ("tests/a.py", '"""The rank. It waits."""\n# The rank\n# What\n'),
    ("tests/a.py", "def f(:\n  '''\n"),
]


class CheckPagesTest(unittest.TestCase):
    def check(self, files, outside=()):
        with tempfile.TemporaryDirectory() as root:
            for path, text in [*TREE, *files]:
                file = pathlib.Path(root) / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            return check_pages.check(pathlib.Path(root), list(outside))[0]

    def test_finds_whatever_is_planted(self):
        for text, part in PLANTED:
            with self.subTest(text=text):
                findings = self.check([("README.md", f"# Page\n\n{text}\n")])
                self.assertEqual([(p, line) for p, line, _ in findings], [("README.md", 3 + text.count("\n"))], findings)
                self.assertIn(part, findings[0][2])

    def test_finds_nothing_in_pages_that_are_right(self):
        for text in CLEAN:
            with self.subTest(text=text):
                # Each line is a paragraph that may be long here.
                words = text if text.startswith(("|", "    ", "[a-")) else text.replace(", ", ",\n")
                self.assertEqual(self.check([("README.md", f"# Page\n\n{words}\n")]), [])

    def test_a_command_may_go_on_in_the_next_line(self):
        page = ("README.md", "# Page\n\n    rankloom report a.rlrun \\\n        -o a.html \\\n        --rank 3\n    rankloom report --last a.rlrun\n")
        self.assertEqual([(line, what) for _, line, what in self.check([page])],
                         [(3, "--rank is no option of rankloom report"), (6, "--last is no option of rankloom report")])

    def test_paths_are_looked_for_from_the_root_and_from_the_page(self):
        self.assertEqual(self.check([("docs/page.md", "# P\n\n`other.md`, [it](other.md), `docs/other.md`, [it](../dev)\n")]), [])
        self.assertEqual(len(self.check([("docs/page.md", "# P\n\n[it](docs/other.md)\n")])), 1)

    def test_a_paragraph_stands_once(self):
        findings = self.check([("README.md", f"# Page\n\n{LONG}\n\n- {LONG}\n\nOther.\n\n{LONG.replace(', ', ',' + chr(10))}\n")])
        self.assertEqual([(p, line) for p, line, _ in findings], [("README.md", 9)], findings)
        self.assertIn("stands in line 3 already", findings[0][2])
        self.assertEqual(self.check([("README.md", f"# Page\n\n{LONG}\n"), ("docs/page.md", f"# Page\n\n{LONG}\n")]), [])

    def test_an_exception_that_nobody_needs_is_a_finding(self):
        page = ("README.md", "# Page\n\n`sim/rooms/rask.h`, `Ghost::walk`\n")
        both = [("README.md", "sim/rooms/*", "a reason"), ("*", "Ghost::walk", "a reason")]
        self.assertEqual(len(self.check([page])), 2)
        self.assertEqual(self.check([page], both), [])
        self.assertEqual(self.check([page], [*both, ("README.md", "sim/other/*", "a reason")]),
                         [("tools/check_pages.py", 1, "OUTSIDE: README.md needs no exception for sim/other/*")])
        for _, _, reason in check_pages.OUTSIDE:
            self.assertTrue(reason)

    def test_the_index_names_every_page(self):
        self.assertEqual(self.check([("docs/README.md", "# Docs\n\n`other.md`\n")]), [("docs/README.md", 1, "no link to other.md")])
        self.assertEqual(self.check([("docs/README.md", "# Docs\n\n[`other.md`](other.md)\n")]), [])

    def test_decisions_have_numbers_without_a_hole_and_one_style_of_heading(self):
        one, three = ("docs/decisions/0001-a.md", "# 1. A\n"), ("docs/decisions/0003-c.md", "# 3. C\n")
        self.assertEqual(self.check([one, ("docs/decisions/0002-b.md", "# 2. B\n"), three]), [])
        self.assertEqual(self.check([one, three]), [(three[0], 1, "decisions are numbered without a hole: want 0002")])
        findings = self.check([one, ("docs/decisions/0002-b.md", "# 0002: B\n")])
        self.assertEqual(findings, [("docs/decisions/0002-b.md", 1, 'the heading of a decision begins with its number, want "# 2. "')])

    def test_the_picture_names_every_folder_and_room(self):
        picture = check_pages.picture()
        for name in [*LAYERS, *ON_TOP, *(room for rooms in ROOMS.values() for room in rooms)]:
            self.assertRegex(picture, rf"\b{name}\b")
        self.assertLessEqual(max(map(len, picture.split("\n"))) + 4, check_pages.COLUMNS)
        page = "# Architecture\n\n```\n" + picture + "\n```\n"
        self.assertEqual(self.check([("docs/architecture.md", page)]), [])
        indented = "# Architecture\n\n" + "".join(f"    {line}\n" for line in picture.split("\n"))
        self.assertEqual(self.check([("docs/architecture.md", indented)]), [])
        findings = self.check([("docs/architecture.md", page.replace("scheduler", "schedules"))])
        self.assertEqual([(p, line) for p, line, _ in findings], [("docs/architecture.md", 1)])
        self.assertIn("it lacks scheduler;", findings[0][2])
        swapped = page.replace("schedule <- scheduler", "scheduler <- schedule")
        self.assertNotEqual(swapped, page)
        self.assertIn("not that of tools/check_layers.py; ", self.check([("docs/architecture.md", swapped)])[0][2])

    def test_the_table_of_folders_has_a_row_for_every_room(self):
        rooms = [*LAYERS, *(f"{folder}/{room}" for folder in ROOMS for room in ROOMS[folder])]
        table = "".join(f"| `{room}` | holds things |\n" for room in rooms)
        tree = [(f"{room}/a.h", "") for room in rooms]
        self.assertEqual(self.check([*tree, ("CONTRIBUTING.md", table)]), [])
        self.assertEqual(self.check([*tree, ("CONTRIBUTING.md", table.replace("| `sim/base` |", "| |"))]),
                         [("CONTRIBUTING.md", 1, "the table of the folders has no row for sim/base")])

    def test_comments_of_sources_end_within_the_columns(self):
        long = "// " + "word " * 24 + "end"
        code = 'Case{"a long row of a table", ' + "1, " * 40 + "},\n"
        web = "// https://" + "x" * 120 + "\n"
        self.assertEqual(self.check([("sim/a.h", f"int a;\n{long}\n{code}{web}")]), [("sim/a.h", 2, "126 columns, want at most 120")])
        self.assertEqual(self.check([("sim/a.h", f"{long[:120]}\n{code}{web}")]), [])

    def test_a_merges_markers_are_found_in_any_file(self):
        for mark in ("<" * 7 + " HEAD", "|" * 7 + " base", ">" * 7 + " main", "<" * 7):
            for path in ("sim/a.cc", "dev", "tests/meson.build", "docs/merged.html"):
                with self.subTest(mark=mark, path=path):
                    text = self.check([(path, f"a\n{mark}\nb\n")])
                    self.assertIn((path, 2, "a merge's marker: one of both sides has to go"), text)
        self.assertEqual(self.check([("sim/a.txt", "Head\n=======\n>>>> quoted\n<<<<<<<<\n  <<<<<<< HEAD\n")]), [])

    def test_comments_of_sources_begin_with_a_noun(self):
        for path, text, line, word in NO_NOUN:
            with self.subTest(path=path, text=text):
                wanted = f'a comment, or a sentence in it, begins with "{word}", want a noun for a subject'
                self.assertEqual(self.check([(path, text)]), [(path, line, wanted)])
        for path, text in NOUNS:
            with self.subTest(path=path, text=text):
                self.assertEqual(self.check([(path, text)]), [])

    def test_a_comment_is_read_as_one_over_its_lines(self):
        text = ("// The rank.\n// It waits. What it\n// holds goes. Who waits?\n//\n// They wait.\nint a;  // it is\n"
                "        // what is set. Whatever it is.\n")
        self.assertEqual([(line, what.split('"')[1]) for _, line, what in self.check([("tests/sim/a.cc", text)])],
                         [(2, "What"), (5, "They"), (6, "it"), (7, "Whatever")])


if __name__ == "__main__":
    unittest.main()
