"""Gives tools/try_page.py pages that do and do not hold what they say."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

TRY_PAGE = pathlib.Path(__file__).resolve().parents[2] / "tools" / "try_page.py"

GOOD = """\
# A page

## One

A script, `say.sh`:

```bash
echo one
```

And at the end of
`say.sh`:

```bash
echo two; echo $1 in 1.23s, $TMPDIR/x
```

```sh
no-such-command
```

```console
$ bash say.sh \\
    three
one
...
three in 9.87s, /tmp/x
```

In `say.sh`:

```diff
-echo one
+echo 1; exit 3
```

```console
$ bash say.sh
1
$ test -e say.sh
```

## Two

```console
$ ls
$ echo a long line; echo b
a ...
b
```
"""


class TryPageTest(unittest.TestCase):
    def follow(self, page, heading="One", *more):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "page.md"
            path.write_text(page)
            done = subprocess.run([sys.executable, TRY_PAGE, "page.md", heading, *more], cwd=folder, capture_output=True, text=True)
            return done.returncode, done.stderr, path.read_text()

    def test_a_page_that_holds(self):
        self.assertEqual(self.follow(GOOD), (0, "", GOOD))
        self.assertEqual(self.follow(GOOD, "Two"), (0, "", GOOD))

    def test_other_output_is_shown_and_written(self):
        page = GOOD.replace("one\n...\n", "one\n2\n")
        shown = "$ bash say.sh \\\n    three\none\n{}\nthree in {}s, /tmp/x\n"
        self.assertEqual(self.follow(page)[:2], (1, "page.md:23: the page shows\n" + shown.format("2", "9.87") +
                                                 "page.md:23: it is now\n" + shown.format("two", "1.23")))
        status, said, written = self.follow(page, "One", "--write")
        self.assertEqual((status, said), (0, ""))
        self.assertEqual(written, GOOD.replace("one\n...\nthree in 9.87s", "one\ntwo\nthree in 1.23s"))

    def test_a_line_too_many_is_seen(self):
        self.assertEqual(self.follow(GOOD.replace("$ bash say.sh\n1\n", "$ bash say.sh\n1\n2\n"))[0], 1)
        self.assertEqual(self.follow(GOOD.replace("b\n```\n", "```\n"), "Two")[0], 1)

    def test_empty_lines_may_be_more_than_the_page_has_but_not_fewer(self):
        page = "## One\n\n```console\n$ echo a; echo; echo; echo b\na\n{}b\n```\n"
        self.assertEqual([self.follow(page.format("\n" * empty))[0] for empty in range(4)], [0, 0, 0, 1])

    def test_a_command_that_fails_in_silence_is_seen(self):
        status, said, _ = self.follow("## One\n\n```console\n$ exit 3\n```\n")
        self.assertEqual((status, said), (1, "page.md:4: the page shows\n$ exit 3\n"
                                             "page.md:4: it is now\n$ exit 3\n(exit status 3)\n"))  # fmt: skip

    def test_what_cannot_be_followed(self):
        for page, text in [
            (GOOD.replace("script, `say.sh`:", "script:"), '7: no file for this block, want "`NAME`:" before it'),
            (GOOD.replace("-echo one", "-echo three"), "32: the change fits 0 places of the file, want 1"),
            (GOOD.replace("And at the end of\n", "In\n"), "14: say.sh is there already"),
            (GOOD.replace("$ bash say.sh\n1", "1\n$ bash say.sh"), "37: output before the first $ COMMAND"),
            ("# A page\n", "1: no heading ## One"),
            ("## One\n\nText.\n", "1: no block under this heading"),
        ]:
            with self.subTest(text=text):
                self.assertEqual(self.follow(page)[:2], (1, f"page.md:{text}\n"))


if __name__ == "__main__":
    unittest.main()
