"""The sources of the documentation's site: its chapters, and comments as documentation."""

import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "docs_site"))
sys.dont_write_bytecode = True
import comments  # noqa: E402
import make_site  # noqa: E402
import plain_text  # noqa: E402


class ContentsTest(unittest.TestCase):
    def test_every_page_and_every_header_has_its_place(self):
        self.assertEqual(make_site.check_contents(ROOT), [])

    def test_a_page_without_a_chapter_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs" / "decisions").mkdir(parents=True)
            for name in ("README.md", "docs/README.md", "docs/decisions/0001-why.md", "docs/lost.md"):
                (root / name).write_text("# A page\n")
            wrong = make_site.check_contents(root)
        self.assertIn("docs/lost.md: stands in no chapter of tools/docs_site/make_site.py", wrong)
        self.assertIn("tools/docs_site/make_site.py: CHAPTERS: docs/errors does not exist", wrong)
        self.assertIn("tools/docs_site/make_site.py: HEADERS and include/rankloom differ in world.h", wrong)
        self.assertFalse([line for line in wrong if "README" in line or "0001-why" in line])


class LinksTest(unittest.TestCase):
    def findings(self, **pages):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in pages.items():
                (pathlib.Path(folder) / f"{name}.html").write_text(text)
            return list(make_site.check_links(pathlib.Path(folder)))

    def test_links_that_lead_somewhere(self):
        self.assertEqual(self.findings(a='<p id="top"></p><a href="b.html#there">b</a><a href="#top">a</a><a href="https://example.org/">out</a>',
                                       b='<h1 id="there"></h1>'), [])

    def test_links_that_lead_nowhere(self):
        self.assertEqual(self.findings(a='<a href="c.html">c</a><a href="b.html#here">b</a>', b='<h1 id="there"></h1>'),
                         ["a.html: link to c.html, which does not exist", "a.html: link to b.html#here: no such place in the page"])

    def test_what_a_page_loads_from_elsewhere(self):
        self.assertEqual(self.findings(a='<script src="https://example.org/x.js"></script>'), ["a.html: loads https://example.org/x.js"])


class TextTest(unittest.TestCase):
    def rst(self, text):
        return "\n".join(plain_text.to_rst(text.split("\n"), "cpp"))

    def test_lines_are_one_paragraph_and_marks_are_themselves(self):
        self.assertEqual(self.rst("Waits for *all*\nof num_keys, a|b."), "Waits for \\*all\\* of num\\_keys, a\\|b.")

    def test_names_and_spans_are_code(self):
        self.assertEqual(self.rst("A World::note() or `x * 2`, by PyTorch."), "A \\ ``World::note()``\\  or \\ ``x * 2``\\ , by PyTorch.")

    def test_indented_lines_are_code(self):
        self.assertEqual(self.rst("As here:\n  int x = 1;\n\n  int y;\nand on."),
                         "As here:\n\n.. code-block:: cpp\n\n   int x = 1;\n\n   int y;\n\nand on.")

    def test_indented_lines_of_a_labelled_paragraph_go_on_with_it(self):
        self.assertEqual(self.rst("Errors: the cause\n  of an abort."), "**Errors:** the cause of an abort.")

    def test_pages_are_links(self):
        self.assertEqual(self.rst("See docs/errors.md."), "See :doc:`/docs/errors`.")


class CommentsTest(unittest.TestCase):
    def filtered(self, *lines):
        return [line.strip() for line in comments.filtered("\n".join(lines)).split("\n")]

    def test_a_comment_above(self):
        self.assertEqual(self.filtered("// How many.", "int size();"),
                         ["/// \\verbatim embed:rst:leading-slashes", "/// How many.", "/// \\endverbatim", "int size();"])

    def test_a_comment_behind_goes_above(self):
        self.assertEqual(self.filtered("  int rank = -1;  // of the sender"),
                         ["/// \\verbatim embed:rst:leading-slashes", "/// Of the sender", "/// \\endverbatim", "int rank = -1;"])

    def test_a_note_for_a_linter_is_none(self):
        self.assertEqual(self.filtered("  Dims(int x);  // NOLINT: implicit"), ["Dims(int x);  // NOLINT: implicit"])

    def test_the_line_of_the_caller_is_left_out(self):
        self.assertEqual(self.filtered("void f(CodeSite code = CodeSite::here());", "int g(int x, CodeSite code = CodeSite::here());"),
                         ["void f();", "int g(int x);"])

    def test_sections_of_a_class_end_with_it(self):
        out = self.filtered("  // --- state", "", "  int a();", "  // --- calls. Shapes are in elements", "", "  int b();", " private:")
        self.assertEqual(out, ["/// @name State", "///@{", "", "int a();", "///@}", "/// @name Calls", "///@{", "", "int b();", "///@}", "private:"])

    def test_a_comment_that_stands_alone_is_of_the_header(self):
        source = "// For rank programs.\n\nclass A;\n// Of B.\nclass B;\n"
        self.assertEqual(comments.floating(source), [["For rank programs."]])
        self.assertNotIn("For rank programs.", comments.filtered(source))

    def test_every_comment_of_the_headers_is_kept(self):
        for header in sorted((ROOT / "include" / "rankloom").glob("*.h")):
            source = header.read_text()
            text = comments.filtered(source)
            self.assertEqual(text.count("\\verbatim"), text.count("\\endverbatim"), header.name)
            self.assertNotRegex(text, r"(?m)^\s*// (?!NOLINT)", header.name)


if __name__ == "__main__":
    unittest.main()
