"""Opens pages of the command `rankloom` in a browser: Debian's Chromium, without a window, driven by Selenium.

    page_test.py WRITE_RUNS WRITE_RANDOM_RUNS [ARG...]            the tests
    page_test.py WRITE_RUNS --images FOLDER TRACE_TRANSFORMER     only the pictures of docs/images

./dev page-test runs it, since it needs a browser.
"""

import base64
import collections
import contextlib
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import zlib

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path += [str(ROOT / "tools"), str(ROOT / "tests" / "tools")]
import small_runs  # noqa: E402
from altered_runs import altered  # noqa: E402
from rankloom_command import page, run_file  # noqa: E402

# The page of each kind: run files, fragment, and what is hidden for the picture.
IMAGES = {
    "stuck_run": (["deadlock"], "call=0.1.3", ".detail, .gaps, section.matrix, details.sums, .cause, .places"),
    "mismatch": (["mismatch"], "", ".gaps, .detail, details.sums"),
    "changed_input": (["changed_input"], "", ".gaps, .detail, section.matrix, details.sums"),
    "explored": (["counted"], "", ".gaps, .detail, section.matrix, section.store, details.sums, .places"),
    "store": (["store"], "axis=step&store=0.2.1", ".gaps, section.matrix, details.sums, .places, .detail .source"),
    "fault": (["faults"], "", ".gaps, .detail, section.matrix, details.sums"),
    "many_ranks": (["big"], "axis=time&x=0,40000", ".gaps, .detail, section.matrix, details.sums"),
    "two_runs": (["passes", "fails"], "", ".gaps, .detail, section.matrix, details.sums"),
    "fake_world": (["step"], "", ".gaps, .detail, .keys"),
}
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,1300", "--hide-scrollbars"]
WRITE_RUNS = WRITE_RANDOM_RUNS = ""
RANDOM_RUNS = 100
SLOW = 60  # seconds until a page must be ready, on a busy machine
# Of the page of 1,024 ranks with 100 calls each.
MOST_OPENING = 2  # seconds
LEAST_RATE = 30  # pictures a second while it is panned
TRIES = 6


def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        subprocess.run([WRITE_RUNS, cls.folder], check=True)
        cls.driver = browser()
        cls.addClassCleanup(cls.driver.quit)

    def page(self, *names, fragment=""):
        html = self.folder / f"{'-'.join(names)}.html"
        if not html.exists():
            runs = [self.folder / (name if name.endswith(".json") else f"{name}.rlrun") for name in names]
            program = [sys.executable, ROOT / "tools" / "rankloom_command"]
            subprocess.run([*program, "report", *runs, "-o", html, "--source", ROOT], check=True, capture_output=True)
        self.driver.get("about:blank")
        self.driver.get(f"file://{html}{fragment}")
        self.wait(lambda: self.js("return document.documentElement.dataset.ready === 'yes'"), "the page is not ready")
        self.assertEqual(self.driver.get_log("browser"), [])
        return html

    # Writes what a run file would say after `change` of each of its lines.
    def write_changed(self, name, new_name, change):
        lines = (self.folder / f"{name}.rlrun").read_bytes().split(b"\n")
        for i, text in enumerate(lines[:-1]):
            line = json.loads(text)
            change(line)
            lines[i] = json.dumps(line).encode()
        (self.folder / f"{new_name}.rlrun").write_bytes(b"\n".join(lines))

    # The page of a run file that small_runs has.
    def small_page(self, name, data, fragment=""):
        (self.folder / f"{name}.rlrun").write_bytes(data)
        return self.page(name, fragment=fragment)

    # Labels of bars, as they stand on the canvas, by rank.
    def labels(self, rank):
        return self.js("return rankloom.timelines[0].labels.filter((label) => label.rank === arguments[0])", rank)

    def wait(self, true, why):
        end = time.monotonic() + SLOW
        while not true():
            self.assertLess(time.monotonic(), end, f"{why}: {self.driver.get_log('browser')}")
            time.sleep(0.02)

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def all(self, css):
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def one(self, css):
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def texts(self, css):
        return [element.text for element in self.all(css)]

    def fragment(self):
        self.js("rankloom.writeNow()")
        return urllib.parse.parse_qs(urllib.parse.urlparse(self.driver.current_url).fragment)

    def keys(self, *keys):
        self.one("canvas.bars").send_keys(*keys)
        self.drawn()

    # After the next picture.
    def drawn(self):
        before = self.js("return rankloom.timelines[0].frames")
        self.js("rankloom.timelines[0].draw()")
        self.wait(lambda: self.js("return rankloom.timelines[0].frames") > before, "nothing is drawn")

    # Where on the canvas the call lies; pixels from the window's left top.
    def place_of(self, rank, index):
        return self.js(
            """const t = rankloom.timelines[0], s = t.scale(), lane = t.run.lanes[arguments[0]], a = lane[rankloom.view.axis];
            t.canvas.scrollIntoView({block: 'center'});
            const box = t.canvas.getBoundingClientRect(), i = arguments[1] - lane.first;
            const right = Math.min(s.x(a.to[i]), box.width);
            return [box.left + (s.x(a.from[i]) + right) / 2, box.top + s.y(t.placeOf.get(arguments[0]) + 0.5)].map(Math.round);""",
            rank,
            index,
        )

    def move_to(self, rank, index, click=False):
        x, y = self.place_of(rank, index)
        actions = ActionBuilder(self.driver)
        actions.pointer_action.move_to_location(x, y)
        if click:
            actions.pointer_action.click()
        actions.perform()

    # The colour at a share of the width of a rank's lane.
    def pixel(self, rank, share):
        return self.js(
            """const t = rankloom.timelines[0], s = t.scale();
            const x = (84 + (t.width - 84) * arguments[1]) * t.ratio, y = s.y(t.placeOf.get(arguments[0]) + 0.5) * t.ratio;
            const c = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
            c.drawImage(t.canvas, -Math.round(x), -Math.round(y));
            return [...c.getImageData(0, 0, 1, 1).data].slice(0, 3);""",
            rank,
            share,
        )

    # Whether anything around there is drawn in the colour of what went wrong.
    def hot(self, rank, share):
        return self.js(
            """const t = rankloom.timelines[0], s = t.scale();
            const x = Math.round((84 + (t.width - 84) * arguments[1]) * t.ratio), y = Math.round(s.y(t.placeOf.get(arguments[0])) * t.ratio);
            const c = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
            c.drawImage(t.canvas, -x, -y);
            const d = c.getImageData(0, 0, 40, Math.round(s.lane * t.ratio)).data;
            for (let i = 0; i < d.length; i += 4) if (d[i] === 0xd5 && d[i + 1] === 0x5e && d[i + 2] === 0) return true;
            return false;""",
            rank,
            share,
        )

    # --- a page of each kind of end

    def test_a_stuck_run_shows_who_waits_and_the_circle(self):
        self.page("deadlock")
        self.assertEqual(self.one("h1").text, "Deadlock: no rank can move")
        self.assertIn("schedule seeded:7", self.one(".facts").text)
        outcomes = self.texts("table.outcomes tr")
        self.assertEqual((len(outcomes), outcomes[2]), (3, "rank 4 returned"))
        self.assertTrue(outcomes[1].startswith("ranks 0-3 deadlocked"), outcomes)
        circle = sorted(int(node.get_attribute("data-ranks")) for node in self.all("svg.waits .node.in-circle"))
        self.assertEqual(circle, [0, 1, 2])
        self.assertEqual([node.get_attribute("data-ranks") for node in self.all("svg.waits .node:not(.in-circle)")], ["3"])
        self.assertEqual(len(self.all("svg.waits path.wait.in-circle")), 3)
        self.assertEqual(len(self.all("svg.waits path.wait")), 4)
        self.assertEqual(self.one("p.circle").text, "Circle: rank 0 → rank 1 → rank 2 → rank 0")
        rows = self.texts("table.waits tr.in-circle")
        self.assertEqual(len(rows), 3)
        self.assertRegex(rows[0], r"^rank 0 recv seq \d+ in group 0.* rank 1\swrite_runs\.cc:\d+\syes$")
        self.assertEqual(
            self.js("return [...rankloom.runs[0].waiting.values()].map((wait) => `${wait.what} ${wait.whom}`)")[0], "recv waits for rank 1"
        )
        self.assertEqual(len(self.all("figure.source .here")), 6)  # two lines of code beside the head, one in each row
        self.assertNotIn("last calls", self.one("pre.cause").text)
        self.assertIn("last calls of rank 0", self.one("pre.last").get_attribute("textContent"))
        self.assertEqual(self.one("canvas.bars").get_attribute("data-ranks"), "5")
        self.assertEqual(self.one("canvas.bars").get_attribute("data-arrows"), "1")

    def test_a_click_on_a_wait_leads_to_its_call(self):
        self.page("deadlock")
        self.all("table.waits tr.in-circle")[1].click()
        self.assertEqual(self.fragment()["call"], ["0.1.4"])
        self.assertIn("recv seq", self.one("table.details").text)
        self.assertIn("nobody, as far as the file tells", self.one("table.details").text)

    def test_a_call_shows_its_line_with_its_neighbours(self):
        self.page("deadlock", fragment="#call=0.1.3")
        here = self.one(".detail figure.source .here").get_attribute("textContent")
        self.assertRegex(here, r"^ *\d+    if \(me == 1\) pg->send\(x, 3, 5\)\.wait\(\);\n$")
        line = int(here.split()[0])
        self.assertEqual([int(text.split()[0]) for text in self.texts(".detail figure.source pre span")], list(range(line - 5, line + 6)))
        self.assertIn("tests/collectives/records/write_runs.cc, as it was when", self.one(".detail figure.source figcaption").text)
        self.keys("p")
        self.assertIn("pg.all_reduce(x).wait()", self.one(".detail figure.source .here").text)

    def test_members_that_differ_are_framed(self):
        self.page("mismatch")
        self.assertIn("Mismatch: ", self.one("h1").text)
        rows = self.texts("section.matrix table.calls tr")
        self.assertEqual((len(rows), rows[1][:13]), (2, "group 0 seq 4"), rows)
        odd = self.texts("td.odd")
        self.assertEqual(len(odd), 2, odd)
        self.assertIn("broadcast root 0", odd[0])
        self.assertIn("[6]", odd[1])
        self.all("td.odd")[1].send_keys(Keys.ENTER)
        self.assertEqual(self.fragment()["call"], ["0.2.4"])
        self.one("button.rows").click()
        self.assertGreater(len(self.all("table.calls tr")), 4)
        self.assertEqual(self.fragment()["rows"], ["all"])
        # In the timeline, too.
        self.assertEqual(
            self.js("return rankloom.runs[0].lanes.map((lane) => [...lane.odd])"),
            [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]],
        )
        self.page("exchange", fragment="#call=0.3.0")
        self.assertEqual(len(self.all("svg.splits rect")), 16)
        self.assertEqual([rect.get_attribute("textContent") for rect in self.all("svg.splits rect.odd")], ["rank 3 sends 5 to rank 1, which wants 6"])
        self.assertEqual(self.texts("table.calls tr:first-child th"), ["call", "0", "1", "2", "3"])
        self.assertEqual(len(self.all("td.odd")), 2)
        # Splits of one tensor, whose rows have two elements.
        self.page("splits", fragment="#call=0.2.0")
        self.assertEqual(len(self.all("svg.splits rect")), 16)
        self.assertEqual(
            [rect.get_attribute("textContent") for rect in self.all("svg.splits rect.odd")],
            ["rank 0 sends 6 to rank 2, which wants 8", "rank 1 sends 8 to rank 2, which wants 6"],
        )
        self.assertIn("float32 [18, 2], splits [3, 4, 5, 6] -> [4, 3, 5, 6]", self.one(".detail").text)
        self.assertEqual(len(self.all("td.odd")), 3)

    def test_of_many_ranks_those_that_called_alike_share_a_column(self):
        kinds = {"t": "kinds", "kinds": [small_runs.kind("all_reduce", 40, 4), small_runs.kind("all_reduce", 40, 6)]}
        made = [small_runs.calls(rank, (0, 1, 2, 3, "c"), (int(rank == 13), 2, 4, 5, "f")) for rank in range(14)]
        self.small_page("fourteen", small_runs.run_file({"ok": False, "text": "Mismatch"}, "f" * 14, kinds, *made))
        self.assertEqual(self.texts("table.calls tr:first-child th"), ["call", "ranks 0-12", "rank 13"])
        self.assertEqual(self.texts("td.odd"), ["all_reduce\nint32 [6] write_runs.cc:40"])
        self.assertEqual([label["text"] for label in self.labels(13)], ["all_reduce 1", "\u2260 all_reduce 2 int32 [6]"])

    def test_calls_of_several_groups_are_told_apart(self):
        groups = [{"id": 0, "name": "0", "description": "", "size": 6, "first": 0, "stride": 1}]
        groups += [{"id": i + 1, "name": f"0.1:{i}", "description": "", "size": 3, "first": 3 * i, "stride": 1} for i in range(2)]
        kinds = [small_runs.kind("all_reduce", 40, 4, group=group) for group in range(3)] + [small_runs.kind("barrier", 41, 1)]
        # Rank 5 leaves the call of its half out.
        made = [small_runs.calls(rank, (3, 1, 1, 1, "c"), (1, 1, 2, 3, "c"), (0, 2, 4, -1, "s")) for rank in range(3)]
        made += [small_runs.calls(rank, (3, 1, 1, 1, "c"), (2, 1, 2, -1, "s")) for rank in (3, 4)]
        made.append(small_runs.calls(5, (3, 1, 1, 1, "c"), (0, 2, 2, -1, "s")))
        data = small_runs.run_file(
            {"ok": False, "text": "Deadlock"}, "s" * 6, {"t": "groups", "groups": groups}, {"t": "kinds", "kinds": kinds}, *made
        )
        self.small_page("halves", data)
        told = [[label["text"] for label in self.labels(rank)] for rank in range(6)]
        self.assertEqual(told[0], ["barrier 1", "all_reduce 1, group 0.1:0", "all_reduce 2, group 0"])
        self.assertEqual(told[4:], [["barrier 1", "all_reduce 1, group 0.1:1"], ["barrier 1", "all_reduce 2, group 0"]])
        # First the call that fewer have not come to.
        self.assertEqual(self.texts("table.calls tr th:first-child"), ["call", "group 0.1:1 seq 1", "group 0 seq 2"])

    def test_a_run_without_calls_begins_along_the_steps(self):
        self.page("adds")
        self.assertEqual(self.fragment()["axis"], ["step"])
        places = "return new Set(rankloom.timelines[0].ticks.map((tick) => tick.x)).size"
        self.assertGreater(self.js(places), 1)
        self.page("adds", fragment="#axis=order")
        self.assertEqual(self.fragment()["axis"], ["order"])
        self.assertEqual(self.js(places), 1)
        # Its end is a wait: a box behind what the rank did before.
        ops = [("set", 40, 1, "c", {"key": "a"}), ("wait", 41, 3, "f", {"key": "b"})]
        wait = {"ranks": [[0, 0]], "for": [], "task": "rank", "what": "store wait", "group": "", "seq": -1, "detail": 'key "b"', "remark": ""}
        waits = {"t": "waits", "waits": [wait | {"file": small_runs.SITE, "line": 41}], "cycle": []}
        data = small_runs.run_file({"ok": False, "kind": "Deadlock", "text": "Deadlock"}, "s", waits, small_runs.store(0, *ops))
        self.small_page("waits_only", data)
        scale = self.js("const t = rankloom.timelines[0], s = t.scale(); return [84, s.x(1), s.x(3), t.width].map((x) => (x - 84) / (t.width - 84))")
        self.assertEqual((self.hot(0, scale[1] + 0.02), self.hot(0, scale[2] - 0.01)), (False, True))

    def test_a_call_of_which_others_made_another_has_no_members_that_came(self):
        self.page("mismatch", fragment="#call=0.1.5")
        told = self.one("table.details").text
        self.assertIn("the 6th call of rank 1", told)
        self.assertIn("\nissued by rank 1\nothers issued ", told)
        self.assertRegex(told, r"others issued all_reduce seq 4, float32 \[4\], by ranks 0, 3 \(write_runs\.cc:\d+\)")
        self.assertRegex(told, r"others issued all_reduce seq 4, float32 \[6\], by rank 2 \(write_runs\.cc:\d+\)")
        for absent in ("came", "last to come", "undefined", " ns", "ended"):
            self.assertNotIn(absent, told)
        self.assertIn("not timed", told)
        # A call within a group that its maker gave no name.
        group = self.js("return rankloom.runs[0].lanes[1].kind.findIndex((_, i) => rankloom.runs[0].group(1, i).size === 2)")
        self.page("mismatch", fragment=f"#call=0.1.{group}&bytes=yes")
        self.assertRegex(self.one("table.details").text, r"group 0\.1:0, ranks \{0-1\}\n")
        self.wait(lambda: self.all("table.bytes"), "no table of bytes")
        self.assertIn("group 0.1:1: {2-3} 2 all_reduce 2 64 B", self.texts("table.bytes tr"))

    def test_a_call_that_waits_has_not_ended(self):
        self.page("deadlock", fragment="#call=0.1.4")
        told = self.one("table.details").text
        self.assertIn("state not complete: rank 1 waits for rank 2\nissued 2 ms\n", told)
        self.assertNotIn("ended", told)
        self.page("deadlock", fragment="#call=0.1.3")
        self.assertRegex(self.one("table.details").text, r"ended \d")

    def test_calls_without_bytes_leave_nothing_behind(self):
        def without_tensors(line):
            for kind in line.get("kinds", []):
                kind["in"] = kind["out"] = []

        self.write_changed("explored", "no_bytes", without_tensors)
        self.page("no_bytes", fragment="#bytes=yes")
        self.wait(lambda: self.all("table.bytes"), "no table of bytes")
        self.assertNotIn("null", self.one("#page").text)

    def test_an_input_that_changed_shows_both_lines(self):
        self.page("changed_input")
        self.assertIn("an input was changed or freed", self.one("h1").text)
        lines = [line.get_attribute("textContent").split(None, 1)[1] for line in self.all(".places .here")]
        self.assertEqual(lines, ["Work work = pg->all_gather_into_tensor(out, in);\n", "work.wait();\n"])
        self.assertEqual(self.all("pre.cause"), [])  # the headline says it all

    def test_a_wait_that_is_no_call_is_drawn(self):
        self.page("key")
        self.assertEqual(
            self.js("return [...rankloom.runs[0].waiting].map(([rank, wait]) => [rank, wait.i, wait.what])"),
            [
                [0, -1, 'store get key "checkpoint/file"'],
                [1, -1, 'store get key "checkpoint/file"'],
                [2, -1, 'store get key "checkpoint/file"'],
                [3, 2, "barrier"],
            ],
        )
        self.assertEqual(self.texts("svg.waits .node.ended text"), ['store get key "checkpoint/file"', "nobody has set it"])
        self.assertEqual(len(self.all("svg.waits path.wait")), 2)
        self.assertEqual(self.texts("td.none"), ["never came"] * 3)
        self.assertTrue(self.hot(rank=0, share=0.8))
        self.assertFalse(self.hot(rank=0, share=0.2))
        # The operation that the ranks wait in.
        self.assertEqual(len(self.all("table.store tr.open")), 3)
        told = ["0", "store", "get", '"checkpoint/file"', "(not", "complete)", self.line_of_get()]
        self.assertEqual(self.texts("table.store tr.open")[0].split()[1:], told)

    def test_a_departure_at_a_call_with_a_root_is_counted_and_shown(self):
        self.small_page("saved", small_runs.saved())
        self.assertEqual(self.texts(".stories figcaption")[1], "The shrunk run, what is left of it: 1 switch")
        row = "\u21c4 at rank 0's broadcast seq 1 [write_runs.cc:38]: the root went on before the others came"
        self.assertEqual(self.texts("table.story tr.switched"), [row])
        self.assertEqual(self.texts("table.story tr")[1], row)  # before the first row that came later
        self.assertEqual(self.texts("table.first-story tr.switched"), [])
        # Where the file does not tell which call it is, the schedule's numbers are said.
        self.small_page("saved_without", small_runs.saved().replace(b"2 alternatives, number 1 chosen", b"2 ready, task 0 chosen"))
        self.assertEqual(
            self.texts("table.story tr.switched"), ["\u21c4 at choice 0 of what happens at rank 0, counted from 0: alternative 1"]
        )

    def test_ranks_with_failed_assertions_do_not_look_as_if_all_was_well(self):
        self.small_page("saved", small_runs.saved())
        self.assertEqual(
            self.texts("table.outcomes tr")[1:], ["\u2717 rank 0 returned, 1 assertion failed see above", "rank 1 returned"]
        )
        named = self.js(
            """const c = CanvasRenderingContext2D.prototype, old = c.fillText, seen = [];
            c.fillText = function (text, ...at) { seen.push(text); old.call(this, text, ...at); };
            rankloom.timelines[0].drawNow();
            c.fillText = old;
            return seen.filter((text) => text.includes('rank'));"""
        )
        self.assertEqual(named, ["\u2717 rank 0", "\u2713 rank 1"])
        # The headline is said once.
        self.assertEqual(self.one("h1").text, "tests/collectives/records/write_runs.cc:40: rank 0: Expected equality of these values:")
        self.assertEqual(self.texts("pre.failure")[0].split("\n")[0].strip(), "rank.store().num_keys()")
        self.assertEqual(self.one("#plain pre").get_attribute("textContent").count("Expected equality"), 1)

    def test_what_finds_the_keys_is_marked_with_what_others_write(self):
        self.small_page("saved", small_runs.saved())
        self.assertEqual(
            self.texts("table.story tr.shared"),
            ['4 store num_keys [write_runs.cc:40] -> "1"', '6 store set part 1 [write_runs.cc:36] = "weights"'],
        )
        self.assertEqual([row.split()[0] for row in self.texts("table.store tr.shared")], ["4", "5"])
        self.assertTrue(self.one("p.shared").text.startswith("Marked: operations that find what keys there are, and what other ranks write."))
        # The turns of a story and the steps of the store are not called the same.
        self.assertEqual(self.texts("table.story th"), ["turn", "rank 0", "rank 1"])
        self.assertIn("Scheduling points", self.one("table.story th").get_attribute("title"))

    def test_choices_are_told_in_words(self):
        self.small_page("saved", small_runs.saved())
        told = self.one("figure.lost figcaption").text
        self.assertIn("Lost with choice 3 of 5: rank 0 went on with store num_keys (2 could). All 2 schedules that begin so fail.", told)
        titles = self.js("return [...document.querySelectorAll('svg.lost circle title')].map((e) => e.textContent)")
        self.assertRegex(titles[1], r"^after choice 1 \(rank 0 began \(2 could\)\): ")
        self.assertIn("(at rank 0's broadcast seq 1 [write_runs.cc:38]: the root went on before the others came)", titles[2])
        self.assertIn("(rank 0 went on, not rank 1 with broadcast seq 1 (2 could))", titles[4])
        self.assertIn("(task 3, which is no rank, went on, not rank 1 with broadcast seq 1 (2 could))", titles[5])

    def test_a_key_that_was_deleted_is_told_where_its_wait_is(self):
        self.small_page("deleted", small_runs.deleted())
        why = "deleted by rank 0 [write_runs.cc:45]"
        self.assertEqual(self.texts("svg.waits .node.ended text"), ['store get key "round/0"', why])
        self.assertIn(why, self.texts("table.waits tr")[2])
        notes = {line.text.split()[0]: line.text.split("\u2190 ")[1] for line in self.all(".places span:has(> .note)")}
        self.assertEqual(notes, {"45": 'rank 0 deletes "round/0"', "47": why})
        self.assertEqual(self.js("return rankloom.runs[0].waiting.get(1).whom"), why)
        # No circle: no column for it.
        self.assertEqual(self.texts("table.waits th"), ["ranks", "wait in", "for", "line of code"])
        # The operation in which the rank waits did not fail.
        self.assertIn("(not complete)", self.one("table.store tr.open").text)
        self.assertEqual(len(self.all("table.store tr.open")), 1)
        # The path of the code is said once.
        self.assertEqual(sum("as it was when" in text for text in self.texts(".places figcaption")), 1)

    def test_a_key_that_nobody_set_is_told_if_all_operations_are_there(self):
        self.small_page("not_set", small_runs.deleted(deletes=False))
        self.assertEqual(self.texts("svg.waits .node.ended text"), ['store get key "round/0"', "nobody has set it"])
        self.small_page("not_whole", small_runs.deleted(deletes=False, made=2))
        self.assertEqual(self.texts("svg.waits .node.ended text"), ['store get key "round/0"', "nobody in sight"])

    def test_labels_of_the_graph_cover_no_node_and_no_other_label(self):
        for name in ("deadlock", "key", "deleted"):
            if name == "deleted":
                self.small_page(name, small_runs.deleted())
            else:
                self.page(name)
            hidden = self.js(
                """const box = (e) => e.getBoundingClientRect(), all = (css) => [...document.querySelectorAll(css)];
                const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
                const labels = all('svg.waits > text.edge'), nodes = all('svg.waits .node rect');
                const covers = (label, i) => [...nodes, ...labels.slice(i + 1)].some((other) => !apart(box(label), box(other)));
                return [labels.length, labels.filter(covers).map((label) => label.textContent)];"""
            )
            self.assertGreater(hidden[0], 1)
            self.assertEqual(hidden[1], [])

    def test_calls_open_at_once_lie_above_each_other(self):
        for axis in ("step", "order"):
            self.small_page("read_early", small_runs.read_early(), fragment=f"#axis={axis}")
            for rank in (0, 1):
                labels = self.labels(rank)
                self.assertEqual([label["i"] for label in labels], [0, 1, 2], axis)
                self.assertLess(labels[0]["y"], labels[1]["y"])
                for one in labels:
                    for other in labels[one["i"] + 1 :]:
                        self.assertTrue(one["y"] != other["y"] or one["right"] <= other["left"], (one, other))
            axes = self.js("const {order} = rankloom.runs[0].lanes[0]; return [[...order.from], [...order.to]]")
            self.assertGreater(axes[1][0], axes[0][1])  # the first is open when the second begins
            self.assertLessEqual(axes[1][1], axes[0][2])  # and neither when the third does
            self.assertLessEqual(axes[1][0], axes[0][2])
        # The pointer finds both.
        found = self.js(
            """const t = rankloom.timelines[0], s = t.scale(), {from, to} = t.run.lanes[0].order, x = s.x((from[1] + to[0]) / 2);
            return [0.2, 0.8].map((share) => t.hit(x, s.y(share)).i);"""
        )
        self.assertEqual(found, [0, 1])

    def test_arrows_begin_and_end_at_their_calls(self):
        self.page("passes", fragment="#axis=order")
        found = self.js(
            """const t = rankloom.timelines[0], c = CanvasRenderingContext2D.prototype, old = c.moveTo, [[[from, i], [to, j]]] = t.run.arrows;
            const {rows} = t.run.lanes[from].order, seen = [];
            c.moveTo = function (...at) { seen.push(at[1]); old.call(this, ...at); };
            t.drawArrows(t.canvas.getContext('2d'), t.scale());
            c.moveTo = old;
            const half = t.scale().y(t.placeOf.get(from) + 0.5);
            return [rows[i], t.placeOf.get(to) > t.placeOf.get(from), seen[0] < half];"""
        )
        self.assertEqual(found, [2, True, True])  # the send lies in the upper half of its lane, above the recv

    def test_a_label_is_cut_in_its_name(self):
        self.small_page("read_early", small_runs.read_early(), fragment="#axis=order")
        fitted = self.js(
            """const c = document.createElement('canvas').getContext('2d');
            c.font = '11px sans-serif';
            const wide = (text) => c.measureText(text).width;
            const widths = [1000, wide('all_gath\u2026 7') + 1, wide('7') + 1, 2];
            return widths.map((width) => fitted(c, width, '', 'all_gather_into_tensor', ' 7', [' root 5', '']));"""
        )
        self.assertEqual(fitted, ["all_gather_into_tensor 7 root 5", "all_gath\u2026 7", "7", ""])
        # As wide as the canvas draws it.
        x0 = self.js("return rankloom.runs[0].lanes[0].order.from[1]")
        self.page("read_early", fragment=f"#axis=order&x={x0 - 9},{x0 + 9}")
        cut = [label["text"] for label in self.labels(0) if label["i"] == 1]
        self.assertRegex(cut[0], r"^all_ga\w*\u2026 2$")
        self.page("mismatch", fragment="#call=0.1.5")
        self.assertTrue(self.labels(1)[-1]["text"].startswith("\u2260 broadcast 4 root 0"), self.labels(1)[-1])

    def test_what_stands_behind_a_lane_is_cut_with_a_mark(self):
        self.page("key")
        drawn = self.js(
            """const c = CanvasRenderingContext2D.prototype, old = c.fillText, seen = [];
            c.fillText = function (text, ...at) { seen.push(text); old.call(this, text, ...at); };
            rankloom.view.x = [-10, 3];
            rankloom.timelines[0].drawNow();
            c.fillText = old;
            return seen.filter((text) => text.startsWith('s') && text.includes('\u2026'));"""
        )
        self.assertEqual(len(drawn), 3, drawn)
        self.assertTrue(all('store get key "checkpoint/file": nobody has set it'.startswith(text.rstrip("\u2026")) for text in drawn), drawn)

    def test_a_flat_curve_is_a_sentence(self):
        self.small_page("read_early", small_runs.read_early())
        self.assertEqual(self.all("svg.lost"), [])
        self.assertIn("When was it lost? Every schedule fails.", self.one("figure.lost").text)
        found = "Found in its run 1: 0 switches from the default order. What is left of it after 5 runs of shrinking: schedule steered:1."
        self.assertEqual(self.one("p.found").text, found)

    def test_code_stands_below_each_other_where_there_is_little_room(self):
        try:
            self.driver.set_window_size(800, 1000)
            self.page("deadlock")
            boxes = [figure.rect for figure in self.all(".places figure")]
            self.assertEqual(self.js("return getComputedStyle(document.querySelector('.places')).flexDirection"), "column")
        finally:
            self.driver.set_window_size(1400, 1300)
        self.assertGreaterEqual(len(boxes), 1)
        self.assertEqual([box["x"] for box in boxes], [boxes[0]["x"]] * len(boxes))
        self.assertTrue(all(box["x"] + box["width"] <= 800 for box in boxes), boxes)

    def test_lines_of_the_circle_come_first(self):
        def circle(line):
            if line.get("t") == "run":
                line["cause"] = line["cause"].replace(":43", ":200")
            if line.get("t") == "waits":
                others, key = line["waits"]
                line["waits"] = [{**others, "ranks": [[2, 3]], "line": 200}, {**others, "ranks": [[0, 0]]}, {**key, "for": [[0, 0]]}]
                line["cycle"] = [0, 1, 0]

        (self.folder / "deleted.rlrun").write_bytes(small_runs.deleted())
        self.write_changed("deleted", "circle", circle)
        self.page("circle")
        self.assertEqual([line.split()[0] for line in self.texts(".places .here")], ["43", "45", "47", "200"])
        captions = self.texts(".places figcaption")
        self.assertIn("write_runs.cc, as it was when this page was made", captions[0])
        self.assertEqual(captions[1:], ["the same file"])
        self.assertEqual(self.texts("table.waits th")[-1], "circle")

    def test_of_two_runs_the_earlier_difference_leads(self):
        (self.folder / "kept.rlrun").write_bytes(small_runs.kept())
        (self.folder / "deleted.rlrun").write_bytes(small_runs.deleted())
        self.page("kept", "deleted")
        self.assertEqual(
            self.texts("p.difference, p.store-difference"),
            ["First difference in the store: the 1st operation of rank 1.", "First difference of the calls: the 2nd call of rank 1."],
        )
        rows = self.texts("table.parting tr")
        self.assertIn('store get "round/0" -> "batch 0" (done) write_runs.cc:47', rows[0])
        self.assertIn('store get "round/0" (not complete) write_runs.cc:47', rows[1])
        # Both sides are one line of code, which is there once and can be seen.
        self.assertEqual([line.split()[0] for line in self.texts(".places .here")], ["47"])
        self.assertTrue(self.one(".places .here").is_displayed())
        # Each part says whose it is.
        heads = self.texts("h2")
        for what in ("Calls", "Operations on the store", "Bytes and time by group", "Not in this file"):
            self.assertEqual([head.split(":")[0] for head in heads if what in head], ["kept.rlrun", "deleted.rlrun"])
        # The name of the difference covers no call.
        named = self.js("const t = rankloom.timelines[1]; t.drawNow(); return [t.named.y + t.named.tall, t.scale().y(0)]")
        self.assertLess(named[0], named[1])
        self.assertEqual(self.js("return rankloom.timelines.map((t) => t.differing().place)"), [1, 1])

    def line_of_get(self):
        lines = (ROOT / "tests" / "collectives" / "records" / "write_runs.cc").read_text().splitlines()
        number = next(i for i, line in enumerate(lines, 1) if 'store().get("checkpoint/file")' in line)
        return f"write_runs.cc:{number}"

    def test_operations_on_the_store_are_shown_with_their_values(self):
        self.page("store")
        self.assertIn("rank 1 failed: no learning rate in the config", self.one("h1").text)
        last = self.one("p.last-operation").text
        self.assertRegex(last, r'^Last operation of rank 1: store get "a/1" -> "1" \(done\) write_runs\.cc:\d+, step \d+$')
        self.assertIn('store.get("a/1") == "1"', "".join(self.texts(".places .here")))
        self.assertEqual(self.one("section.store h2").text, "Operations on the store (14)")
        rows = self.texts("table.store tr")
        self.assertEqual((len(rows), rows[0]), (15, "step rank operation written found line of code"))
        steps = [int(row.split()[0]) for row in rows[1:]]
        self.assertEqual(steps, sorted(steps))
        value = r'"\{"lr": 0\.1, "note": "</script>\\xff"\} *\.\.\." \(1033 bytes\)'
        self.assertRegex("\n".join(rows), rf'\n\d+ 0 store set "config" {value} +write_runs\.cc:\d+\n')
        # Only what ranks share is marked, and the keys of one rank are not.
        shared = self.texts("table.store tr.shared")
        self.assertEqual(len(shared), 9)
        self.assertTrue(all('"config"' in row or '"seen"' in row for row in shared), shared)
        canvas = self.one("canvas.bars")
        self.assertEqual(canvas.get_attribute("data-operations"), "14")
        self.one("input[name=text]").send_keys("multi_set")
        self.drawn()
        self.assertEqual((canvas.get_attribute("data-operations"), len(self.all("table.store tr"))), ("4", 5))
        self.all("table.store tr")[1].send_keys(Keys.ENTER)
        self.assertRegex(self.fragment()["store"][0], r"^0\.\d\.\d$")
        told = self.one("table.details").text
        self.assertRegex(told, r'^operation store multi_set "a/\d" and 1 more, the \d\w\w of rank \d on the store\nwritten "1"\nstate done\n')
        self.assertRegex(told, r"\nsteps begun at \d+, ended at \d+")
        self.page("store", fragment="#store=0.2.1")
        self.assertRegex(self.one("table.details").text, r'^operation store add "seen", the 2nd of rank 2 on the store\nadded "1"\nfound "\d"\n')
        self.assertIn("other ranks on this key ranks 0-1, 3", self.one("table.details").text)

    def test_a_diamond_of_the_store_is_told_and_chosen(self):
        self.page("store", fragment="#axis=step")
        tick = self.js(
            """const t = rankloom.timelines[0], tick = t.ticks.find(({op}) => op.rank === 2 && op.what === 'add');
            t.canvas.scrollIntoView({block: 'center'});
            const now = t.canvas.getBoundingClientRect();
            return [now.left + tick.x, now.top + tick.y].map(Math.round);"""
        )
        actions = ActionBuilder(self.driver)
        actions.pointer_action.move_to_location(*tick)
        actions.pointer_action.click()
        actions.perform()
        self.wait(lambda: "store" in self.fragment(), "nothing is chosen")
        self.assertEqual(self.fragment()["store"], ["0.2.1"])
        self.assertRegex(self.one(".under").text, r'^rank 2: store add "seen" = "1" -> "\d" \(done\) write_runs\.cc:\d+$')
        self.keys("p")
        self.assertNotIn("store", self.fragment())

    def test_the_axis_may_be_steps(self):
        self.page("store", fragment="#axis=step")
        self.assertEqual(self.one("select[name=axis]").get_attribute("value"), "step")
        self.assertEqual(
            self.js("return [...document.querySelectorAll('select[name=axis] option')].map((e) => e.value)"), ["order", "step"]
        )  # no time passed
        run = run_file.read(str(self.folder / "store.rlrun"))
        drawn = self.js("return rankloom.runs[0].lanes.map(({step}) => [...step.from].map((from, i) => [from, step.met[i], step.to[i]]))")
        for rank in range(4):
            calls = run.of_rank(rank)
            self.assertEqual([place[0] for place in drawn[rank]], [call.step for call in calls])
            for call, (begun, met, to) in zip(calls[:2], drawn[rank], strict=False):
                last = max(run.of_rank(other)[call.index].step for other in range(4))
                self.assertEqual((met, to), (last, call.done + 1))
                self.assertLessEqual(begun, met)
        self.move_to(2, 1)
        self.wait(lambda: "rank 2 at step" in self.one(".under").text, "nothing is told")
        self.page("store", fragment="#axis=step&call=0.2.1")
        self.assertRegex(self.one("table.details").text, rf"\nsteps issued at {run.of_rank(2)[1].step}, ended at {run.of_rank(2)[1].done}\n")
        # A file without steps has no such axis.
        self.page("deadlock", fragment="#axis=step")
        self.assertEqual(self.fragment()["axis"], ["order"])

    def test_what_two_runs_did_otherwise_with_the_store(self):
        self.page("adds", "adds_otherwise")
        self.assertIn("Both runs made the same calls", self.one("p.difference").text)
        self.assertRegex(self.one("p.store-difference").text, r"^First difference in the store: the 1st operation of rank \d\.$")
        rows = self.texts("table.parting tr")
        self.assertEqual([row.split()[0] for row in rows], ["adds.rlrun", "adds_otherwise.rlrun"])
        self.assertNotEqual(rows[0].split("store add")[1], rows[1].split("store add")[1])

    def test_an_exception_leads(self):
        self.page("exception")
        self.assertIn("rank 2 failed: no batch left", self.one("h1").text)
        self.assertRegex(self.one("h1").text, r"\(std::runtime_error\), after all_reduce seq 2 \(completed\) \[group 0, write_runs\.cc:\d+\]$")
        self.assertEqual(self.one("table.outcomes tr[data-state=f]").text, "\u2717 rank 2 failed see above")
        self.assertEqual(self.all("svg.waits"), [])
        self.assertEqual(self.texts("td.none"), ["never came"])

    def test_an_explored_run_tells_its_story(self):
        self.page("explored")
        self.assertIn("place", self.one("h1").text)
        self.assertEqual(self.texts("table.story th"), ["turn", "rank 0", "rank 1"])
        self.assertEqual(len(self.all("table.story tr.switched")), 1)
        self.assertRegex(self.one("table.story tr.switched").text, r"^\d+ \u21c4")
        self.assertRegex(self.one("p.found").text, r"^Found in its run 2: 1 switch from the default order\.")
        self.assertEqual(self.texts("table.shares td"), ["exhaustive", "2", "", "at least 1"])
        self.assertTrue(self.all("button.copy"))

    def test_the_first_run_stands_beside_the_shrunk_one(self):
        self.page("drawn")
        self.assertIn("the shrunk run, beside the first that failed", " ".join(self.texts("h2")))
        facts = self.js("return rankloom.runs[0].explored")
        # Of many switches the story has the last.
        self.assertGreater(len(self.all("table.first-story tr.switched")), 0)
        self.assertLessEqual(len(self.all("table.first-story tr.switched")), len(set(facts["found_story_switches"])))
        self.assertEqual(len(self.all("table.story tr.switched")), len(set(facts["switches"])))
        captions = self.texts(".stories figcaption")
        self.assertEqual(captions[0], f"The first run that failed, as it was found: {facts['found_switches']} switches from the default order")
        self.assertRegex(captions[1], r"^The shrunk run, what is left of it: \d switch(es)?$")
        boxes = [figure.rect for figure in self.all(".stories figure")]
        self.assertEqual(len(boxes), 2)
        self.assertTrue(all(box["width"] > 100 for box in boxes) and boxes[0]["y"] == boxes[1]["y"], boxes)
        # The values that the ranks wrote and found, in the shrunk run, which is the one that the file has.
        run = run_file.read(str(self.folder / "drawn.rlrun"))
        found = sorted(op.values() for rank in range(run.world_size) for op in run.store_of(rank) if op.op in ("get", "set"))
        self.assertEqual(sorted(self.texts("table.story .value")), found)
        self.assertEqual(self.texts("table.first-story .value"), [])
        self.assertGreater(len(self.all("table.first-story th")), 2)

    def test_a_story_marks_what_ranks_share(self):
        self.page("counted")
        rows = self.texts("table.story tr.shared")
        self.assertEqual([row.split()[0] for row in rows], ["1", "9", "11", "12", "15", "20"])
        self.assertEqual(self.one("p.shared").text[:36], "Marked: operations on the key count,")
        self.assertIn("A row is a turn of a rank", self.one("p.rows").text)
        self.assertIn("scheduling points above are counted apart", self.one("p.rows").text)
        self.assertIn("19 scheduling points", self.one(".facts").text)
        titles = [element.get_attribute("title") for element in self.all(".notation")]
        self.assertEqual(len(titles), 2)
        self.assertIn("1@5>0: at choice 5, counted from 0, rank 1 is put off and rank 0 goes on.", titles[0])
        # The parts that the page shows are not among those that the file lacks.
        self.assertFalse(self.one("details.gaps").get_property("open"))
        self.one("details.gaps summary").click()
        self.wait(lambda: "gaps" in self.fragment(), "it is not in the fragment")
        told = self.one("details.gaps").text
        self.assertNotIn("steps of calls", told)
        self.assertIn("operations on stores that the program made itself", told)

    def test_a_free_run_says_why_nothing_repeats_it(self):
        self.page("free")
        self.assertEqual(self.all(".rerun"), [])
        self.assertIn("no schedule repeats a free run. RANKLOOM_SEED=1", self.one("p.no-rerun").text)
        self.page("deadlock")
        self.assertEqual(self.all("p.no-rerun"), [])

    def test_when_a_run_was_lost(self):
        self.page("explored")
        facts = self.js("return rankloom.runs[0].explored")
        self.assertEqual(len(self.all("svg.lost circle")), len(facts["choices"]) + 1)
        self.assertEqual((facts["futures"][-1], facts["lost"][-1]), (1, 1))
        self.assertEqual((facts["futures"], facts["lost"]), (sorted(facts["futures"], reverse=True), sorted(facts["lost"], reverse=True)))
        # Two ranks that do the same: who comes first is as often the one as the other.
        self.assertEqual(facts["lost"][0] * 2, facts["futures"][0])
        first = next(made for made, fail in enumerate(facts["lost"]) if fail == facts["futures"][made])
        self.assertIn(f"When was it lost? Lost with choice {first} of {len(facts['choices'])}: ", self.one("figure.lost figcaption").text)
        self.assertEqual(len(self.all("svg.lost circle.first")), 1)

    def test_when_a_longer_run_was_lost_is_sampled(self):
        self.page("counted")
        facts = self.js("return rankloom.runs[0].explored")
        self.assertTrue(facts["sampled"])
        self.assertEqual(len(set(facts["futures"])), 1)
        self.assertEqual(facts["lost"][-1], facts["futures"][-1])  # all of the run was chosen
        self.assertTrue(0 < facts["lost"][0] < facts["futures"][0], facts)
        told = self.one("figure.lost figcaption").text
        self.assertRegex(
            told, r"^When was it lost\? Lost by choice \d+ of \d+: rank \d went on .* A sample: from each choice on, \d+ runs went on at random\.$"
        )

    def test_faults_and_gaps_are_told(self):
        self.page("faults")
        self.assertEqual(self.texts("ul.faults li"), ["crash@rank=1,nth=2"])
        self.assertEqual(self.js("return [...rankloom.runs[0].struck]"), [[1, 1]])
        self.page("dropped")
        self.assertTrue(self.one("details.gaps").get_property("open"))
        self.assertIn("first calls of ranks 0-3; no arrows of their messages are drawn", self.one(".gaps").text)
        self.assertEqual(self.one("canvas.bars").get_attribute("data-arrows"), "0")
        self.page("not_kept")
        self.assertEqual(self.one("h1").text, "All ranks returned")
        self.assertIn("No calls in this file. calls: a run that went well", self.one("p.none").text)
        self.assertIn("calls: a run that went well keeps them only with WorldOptions::keep_run", self.one(".gaps").text)

    def test_hostile_text_is_text(self):
        self.page("hostile")
        self.assertIn("</script><script>document.title='owned'</script><!--\\xff\\x1b[31m\\x2028 & \"'\\", self.one("h1").text)
        self.assertNotEqual(self.driver.title, "owned")
        self.assertEqual(len(self.all("script")), 2)

    def test_altered_files_are_refused_or_shown(self):
        self.page("deadlock")
        every = [(self.folder / f"{name}.rlrun").read_bytes() for name in ("deadlock", "explored", "store")]
        for whole in (*every, small_runs.saved(), small_runs.deleted()):
            found = []
            for what, data in altered(whole):
                with contextlib.suppress(run_file.RunFileError):
                    found.append((what, page.page_data([run_file.parse(data, "altered.rlrun")])))
            self.assertGreater(len(found), 40)
            told = self.js(
                """return arguments[0].map(([what, data]) => {
                    try { rankloom.build(JSON.parse(data)); } catch (error) { return `${what}: ${error}`; }
                    return document.title === 'owned' || document.querySelectorAll('script').length !== 2 ? `${what}: a script` : '';
                }).filter((line) => line);""",
                found,
            )
            self.assertEqual(told, [])
        self.assertEqual(self.driver.get_log("browser"), [])

    def test_all_of_a_drawn_run_can_be_shown(self):
        folder = self.folder / "drawn"
        folder.mkdir()
        subprocess.run([WRITE_RANDOM_RUNS, folder, "1", str(RANDOM_RUNS)], check=True, stdout=subprocess.DEVNULL)
        self.page("deadlock")
        calls = 0
        for path in (*sorted(folder.glob("*.rlrun")), *sorted(self.folder.glob("*.rlrun"))):
            with self.subTest(path.name):
                told, shown = self.js(
                    """rankloom.build(JSON.parse(arguments[0]));
                    const {view, timelines: [t]} = rankloom;
                    let shown = 0;
                    for (view.fold of ['yes', 'no']) {
                      for (view.axis of ['order', 'time', 'step']) {
                        for (view.colour of ['', 'group']) t.drawNow();
                      }
                    }
                    document.querySelectorAll('details').forEach((e) => { e.open = true; e.dispatchEvent(new Event('toggle')); });
                    t.run.lanes.slice(0, 8).forEach((lane, rank) => {
                      for (let i = 0; i < lane.count; ++i, ++shown) t.choose(rank, i);
                    });
                    for (const name of ['fold', 'colour', 'call', 'bytes', 'keys', 'gaps']) view[name] = '';
                    return [document.body.innerText.match(/.{0,80}\\b(undefined|NaN|null|Infinity|object Object)\\b.{0,80}/g), shown];""",
                    page.page_data([run_file.read(str(path))]),
                )
                self.assertIsNone(told)
                calls += shown
        self.assertGreater(calls, RANDOM_RUNS)
        self.assertEqual(self.driver.get_log("browser"), [])

    def test_ten_megabytes_of_text_open(self):
        run = self.folder / "long.rlrun"
        lines = (self.folder / "exception.rlrun").read_bytes().split(b"\n")
        facts = json.loads(lines[1])
        facts["text"] = "rank 2 failed: </pre></script>\0\n" + "x </script> " * 900_000
        run.write_bytes(b"\n".join([lines[0], json.dumps(facts).encode(), *lines[2:]]))
        begun = time.monotonic()
        html = self.page("long")
        print(f"10 MB of text: made and opened in {time.monotonic() - begun:.2f} s, {html.stat().st_size / 1e6:.2f} MB")
        self.assertEqual(self.one("h1").text, "rank 2 failed: </pre></script>\\x00")
        self.assertRegex(self.one("pre.cause").get_attribute("textContent")[-40:], r"\n\.\.\. \d+ more characters$")
        self.assertEqual(len(self.all("script")), 2)

    def test_two_runs_stand_together_with_their_first_difference(self):
        self.page("passes", "fails")
        self.assertEqual(self.one("p.difference").text, "First difference: the 12th call of rank 1.")
        self.assertEqual(len(self.all("canvas.bars")), 2)
        rows = self.texts("table.parting tr")
        self.assertRegex(rows[1], r"^passes\.rlrun all_reduce seq 4 in group 0 float32 \[16\]\s+write_runs\.cc:\d+$")
        self.assertRegex(rows[2], r"^fails\.rlrun barrier seq 4 in group 0\s+write_runs\.cc:\d+$")
        self.all("table.parting tr")[2].click()
        self.assertEqual(self.fragment()["call"], ["1.1.11"])
        self.assertEqual(self.texts("h1")[0], "All ranks returned")
        places = self.js("return rankloom.timelines.map((t) => t.differing())")
        self.assertEqual([place["place"] for place in places], [1, 1])
        self.assertEqual(places[0]["x"], places[1]["x"])

    def test_ranks_that_are_alike_share_a_lane(self):
        self.page("many")
        self.assertIn("rank 41 (returned)", self.one("pre.cause").text)
        canvas = self.one("canvas.bars")
        self.assertEqual(
            (canvas.get_attribute("data-lanes"), canvas.get_attribute("data-ranks"), canvas.get_attribute("data-heat")), ("2", "64", "false")
        )
        self.assertEqual(self.js("const t = rankloom.timelines[0]; return [t.ranksAt(0).length, t.ranksAt(1)]"), [63, [41]])
        self.assertEqual(self.js("return [...rankloom.runs[0].absentOf.keys()]"), [41])
        self.keys("f")
        self.assertEqual(canvas.get_attribute("data-lanes"), "64")
        self.assertEqual(self.fragment()["fold"], ["no"])
        self.keys("f")
        self.assertEqual(canvas.get_attribute("data-lanes"), "2")
        # The name of a lane unfolds it.
        canvas = self.one("canvas.bars")
        webdriver.ActionChains(self.driver).move_to_element_with_offset(
            canvas, 30 - canvas.size["width"] // 2, 15 - canvas.size["height"] // 2
        ).click().perform()
        self.drawn()
        self.assertEqual((self.fragment()["rank"], self.fragment()["fold"]), (["0-40, 42-63"], ["no"]))
        self.assertEqual(canvas.get_attribute("data-lanes"), "63")

    def test_many_ranks_are_a_map_that_unfolds(self):
        subprocess.run([WRITE_RUNS, self.folder, "big", "1024", "100"], check=True, capture_output=True)
        begun = time.monotonic()
        self.page("big")
        made = time.monotonic() - begun
        canvas = self.one("canvas.bars")
        self.assertEqual((canvas.get_attribute("data-heat"), canvas.get_attribute("data-drawn")), ("true", "102400"))
        self.assertLess((self.folder / "big.html").stat().st_size, 1e6)
        # Of a few tries the best, since this machine may be busy.
        opened, rates, empty = [], [], 0.0
        while len(opened) < TRIES and (not opened or min(opened) >= MOST_OPENING or max(rates) < LEAST_RATE):
            self.driver.get("about:blank")
            empty = max(empty, 1000 / statistics.mean(self.frames_while("")))
            self.page("big")
            opened.append(self.js("return rankloom.readyAfter") / 1000)
            self.js("rankloom.timelines[0].zoom(3); rankloom.timelines[0].zoomRows(2); rankloom.timelines[0].drawNow()")
            apart = self.frames_while("rankloom.timelines[0].pan(frames < 60 ? 0.02 : -0.02, frames % 60 < 30 ? 0.01 : -0.01)")
            rates.append(1000 / statistics.mean(apart))
            self.assertEqual(canvas_count(self), "1024")
            print(
                f"1024 ranks x 100 calls: made and opened in {made:.2f} s, opened in {opened[-1]:.2f} s, {rates[-1]:.0f} pictures a second "
                f"while panning, at most {max(apart):.0f} ms apart; an empty page {empty:.0f} a second; load {os.getloadavg()[0]:.1f}"
            )
        self.assertLess(min(opened), MOST_OPENING)
        # No page has more pictures than an empty one.
        self.assertGreaterEqual(max(rates), min(LEAST_RATE, 0.8 * empty))
        self.keys("0", *["*"] * 12)
        canvas = self.one("canvas.bars")
        self.assertEqual(canvas.get_attribute("data-heat"), "false")
        self.assertLess(int(canvas.get_attribute("data-drawn")), 102400)

    # Milliseconds between pictures of the browser, before each of which `script` runs.
    def frames_while(self, script):
        return self.driver.execute_async_script(
            f"""const done = arguments[0], apart = [];
            let frames = 0, last = 0;
            const next = (now) => {{
              if (frames > 0) apart.push(now - last);
              last = now;
              if (++frames > 120) return done(apart);
              {script};
              requestAnimationFrame(next);
            }};
            requestAnimationFrame(next);"""
        )

    def test_a_map_that_is_moved_shows_what_a_new_one_would(self):
        pixels = """const t = rankloom.timelines[0], {width, height} = t.canvas;
            const drawn = () => {
              t.drawNow();
              const c = Object.assign(document.createElement('canvas'), {width, height}).getContext('2d', {willReadFrequently: true});
              c.drawImage(t.canvas, 0, 0);
              return c.getImageData(0, 0, width, height).data;
            };
            const moved = drawn(), painted = [t.map.canvas.width, t.map.canvas.height];
            t.map = null;
            const fresh = drawn();
            let other = 0;
            for (let i = 0; i < moved.length; i += 4) other += [0, 1, 2].some((k) => moved[i + k] !== fresh[i + k]);
            return [other / (moved.length / 4), painted, [t.map.canvas.width, t.map.canvas.height]];"""
        subprocess.run([WRITE_RUNS, self.folder, "big", "1024", "100"], check=True, capture_output=True)
        self.page("big")
        self.js("const t = rankloom.timelines[0]; t.zoom(4); t.zoomRows(1.3); t.drawNow()")
        # By ten columns of the map, and by ten rows: first a larger one is painted, then it is moved.
        move = """const t = rankloom.timelines[0], s = t.scale();
            t.pan(arguments[0] * t.map.column / (s.x1 - s.x0), arguments[1] * t.map.row / (s.y1 - s.y0));
            t.drawNow();"""
        self.js(move, 10, 10)
        painted = self.js("return rankloom.timelines[0].map.x0")
        self.js(move, 10, 10)
        self.assertEqual(self.js("return rankloom.timelines[0].map.x0"), painted)
        other, moved, fresh = self.js(pixels)
        self.assertGreater(moved[0], fresh[0])
        self.assertGreater(moved[1], fresh[1])
        self.assertLess(other, 0.01)
        # Another rank, text or theme is another map.
        self.js("rankloom.view.text = 'barrier'; rankloom.timelines[0].drawNow()")
        self.assertEqual(self.js(pixels)[0], 0)
        self.js("document.querySelector('button.theme').click(); rankloom.timelines[0].drawNow()")
        self.assertEqual(self.js(pixels)[0], 0)

    def test_a_run_of_a_million_calls_is_small_and_quick(self):
        folder = self.folder / "million"
        folder.mkdir()
        written = subprocess.run([WRITE_RUNS, folder, "big", "1024", "1000"], check=True, capture_output=True, text=True)
        seconds, size = float(written.stdout), (folder / "big.rlrun").stat().st_size
        print(f"1024 ranks x 1000 calls: {size / 1e6:.1f} MB, written in {seconds:.2f} s of processor time")
        self.assertLess(size, 40e6)
        self.assertLess(seconds, 1)

    def test_a_map_shows_what_waits_and_what_works(self):
        self.page("many", fragment="#fold=no&y=0,64")
        self.js("Object.defineProperty(rankloom.timelines[0], 'height', {get: () => 200, set: () => {}}); rankloom.timelines[0].drawNow()")
        canvas = self.one("canvas.bars")
        self.assertEqual([canvas.get_attribute(f"data-{name}") for name in ("heat", "lanes", "marks")], ["true", "64", "1"])
        # Left: complete calls. Right: all but rank 41 wait, pale, hatched and framed.
        self.assertEqual(self.pixel(10, 0.1), [0, 114, 178])
        red, green, blue = self.pixel(10, 0.99)
        self.assertNotEqual((red, green, blue), (0, 114, 178))
        self.assertNotEqual((red, green, blue), (255, 255, 255))
        self.assertTrue(self.hot(rank=0, share=0.94))
        self.assertFalse(self.hot(rank=10, share=0.1))
        self.assertEqual(self.pixel(41, 0.99), [255, 255, 255])

    def test_a_map_shows_both_calls_where_ranks_differ(self):
        """In the colours that the legend has for them."""
        self.write_changed("many", "many_differ", half_call_a_barrier)
        self.page("many_differ", fragment="#fold=no")
        self.js("Object.defineProperty(rankloom.timelines[0], 'height', {get: () => 220, set: () => {}}); rankloom.timelines[0].drawNow()")
        canvas = self.one("canvas.bars")
        self.assertEqual([canvas.get_attribute(f"data-{name}") for name in ("heat", "marks")], ["true", "32"])
        found = self.js(
            """const t = rankloom.timelines[0], s = t.scale(), near = (rank, colour) => {
              const y = Math.round(s.y(rank) * t.ratio), x = Math.round((s.x(t.run.lanes[0].order.from[20]) + 8) * t.ratio);
              const c = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
              c.drawImage(t.canvas, -x, -y);
              const d = c.getImageData(0, 0, 60, Math.round(8 * s.lane * t.ratio)).data;
              const pale = [1, 3, 5].map((at) => Math.round(0.3 * parseInt(colour.slice(at, at + 2), 16) + 0.7 * 255));
              for (let i = 0; i < d.length; i += 4) if (pale.every((part, k) => Math.abs(part - d[i + k]) < 3)) return true;
              return false;
            };
            return [near(8, '#0072b2'), near(8, '#e69f00'), near(48, '#0072b2'), near(48, '#e69f00')];"""
        )
        self.assertEqual(found, [True, False, False, True])

    def test_an_operation_has_one_colour_on_every_page(self):
        found = []
        for name in ("deadlock", "mismatch", "key"):
            self.page(name)
            shown = self.js("return [...document.querySelectorAll('.legend i')].map((i) => [i.parentNode.textContent, i.style.background])")
            found.append({text.split()[0]: colour for text, colour in shown})
        self.assertEqual({colours["all_reduce"] for colours in found}, {"rgb(0, 114, 178)"})
        self.assertEqual(found[2]["barrier"], "rgb(230, 159, 0)")
        # No two of a page look alike, and a name that nobody knows has one, too.
        self.assertTrue(all(len(set(colours.values())) == len(colours) for colours in found), found)
        self.assertEqual(len(set(self.js("return [opColour('mine'), opColour('mine'), opColour('all_reduce')]"))), 2)

    def test_the_legend_has_the_marks_of_the_page_only(self):
        self.page("passes")
        self.assertEqual(self.one(".legend .marks").text, "pale: until all members came")
        self.page("mismatch")
        self.assertIn("hatched: not complete or failed; \u2260, a thick frame: differs from most", self.one(".legend .marks").text)
        self.assertNotIn("fault", self.one(".legend .marks").text)
        self.page("faults")
        self.assertIn("\u26a1: a fault struck", self.one(".legend .marks").text)

    def test_controls_have_room_for_their_words(self):
        self.page("many")
        short = self.js(
            """const c = document.createElement('canvas').getContext('2d');
            return [...document.querySelectorAll('.controls select, .controls input')].filter((e) => {
              c.font = getComputedStyle(e).font;
              const words = e.tagName === 'SELECT' ? e.selectedOptions[0].textContent : e.placeholder;
              return c.measureText(words).width > e.clientWidth - 17;
            }).map((e) => e.name);"""
        )
        self.assertEqual(short, [])

    def test_short_calls_that_failed_are_seen(self):
        self.page("free", fragment="#axis=time")
        least = self.js(
            """const t = rankloom.timelines[0], c = CanvasRenderingContext2D.prototype, seen = [], old = c.strokeRect;
            for (const {state, time, count} of t.run.lanes) {
              for (let i = 0; i < count; ++i) if (state[i] === 'f') time.from[i] = time.met[i] = time.to[i] - 1;
            }
            c.strokeRect = function (x, y, w, h) { seen.push(w + this.lineWidth); old.call(this, x, y, w, h); };
            t.drawNow();
            c.strokeRect = old;
            return seen;"""
        )
        self.assertTrue(least)
        self.assertGreaterEqual(min(least), 3)

    def test_fake_ranks_show_bytes_and_time_by_group(self):
        record = {"traceEvents": [{"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "rank 7"}}]}
        for tid, name in ((0, "compute"), (1, "group dp"), (2, "group pp")):
            record["traceEvents"].append({"ph": "M", "name": "thread_name", "pid": 7, "tid": tid, "args": {"name": name}})
        record["traceEvents"].append({"ph": "X", "cat": "compute", "name": "forward", "pid": 7, "tid": 0, "ts": 1.5, "dur": 20})
        facts = {
            "dtype": "BFloat16",
            "In msg nelems": 500,
            "Out msg nelems": 500,
            "Group size": 64,
            "Process Group Name": "0.1.dp[0]",
            "Process Group Description": "mesh_dp",
            "Seq": 1,
            "Ring bytes": 1968,
            "Call site": "step.cc:12",
        }
        for seq, begin in ((1, 0), (2, 30)):
            record["traceEvents"].append(
                {"ph": "X", "cat": "collective", "name": "all_reduce", "pid": 7, "tid": 1, "ts": begin, "dur": 10, "args": {**facts, "Seq": seq}}
            )
        sent = {
            **facts,
            "Process Group Name": "0.1.pp[0]",
            "Process Group Description": "mesh_pp",
            "Group size": 4,
            "Ring bytes": 1000,
            "Src Rank": 7,
            "Dst Rank": 71,
        }
        record["traceEvents"].append({"ph": "X", "cat": "collective", "name": "send", "pid": 7, "tid": 2, "ts": 10, "dur": 5, "args": sent})
        (self.folder / "step.json").write_text(json.dumps(record))
        self.page("step.json")
        self.assertEqual(self.one("h1").text, "Fake world: the calls of 1 of 64 ranks")
        self.assertEqual(self.js("return rankloom.runs[0].run.lanes"), ["7 compute", "7 dp", "7 pp"])
        self.assertEqual(
            self.texts("table.bytes tr"),
            [
                "group ranks call calls bytes time",
                "mesh_dp 64 all_reduce 2 3.94 kB 20 us",
                "mesh_pp 4 send 1 1 kB 5 us",
                "computation 1 forward 1 0 B 20 us",
            ],
        )
        self.assertEqual(self.one("svg.held").get_attribute("aria-label"), "Tensors of calls in flight hold 1 kB at most")
        self.assertEqual(self.fragment(), {"axis": ["time"]})
        self.assertEqual(self.all("section.matrix, table.outcomes"), [])

    def test_the_run_file_of_a_fake_world_has_its_totals(self):
        self.page("fake", fragment="#call=0.1.0")
        self.assertEqual(self.one("h1").text, "Fake world: the calls of 2 of 8 ranks")
        self.assertEqual(
            self.texts("table.bytes:not(.fake) tr"),
            [
                "group ranks call calls bytes time",
                "mesh_tp, 2 groups 4 all_reduce 3 30 kB 48 us",
                "mesh_pp 2 send 1 1 kB 2 us",
                "mesh_pp 2 recv 1 1 kB 2 us",
                "computation, 2 groups 1 forward 2 0 B 30 us",
                "computation 1 more 1 0 B 5 us",
            ],
        )
        self.assertEqual(
            self.texts("table.bytes.fake tr"), ["rank calls computes ends at buffers, at most", "0 2 15 us 24 us 4 kB", "4 3 20 us 58 us 16 kB"]
        )
        told = self.one("table.details").text
        self.assertIn("call send seq 1 to 4 pp, tag 3, the 1st call of 0 pp\n", told)
        self.assertIn("bytes 1 kB over a ring\n", told)
        self.assertIn("matched with 4 pp", told)
        self.assertEqual(self.one("canvas.bars").get_attribute("data-arrows"), "1")
        # Computation has colours of its own.
        colours = self.js("return [...document.querySelectorAll('.legend span i')].map((i) => i.style.background)")
        self.assertEqual(len(colours), 5)
        self.assertNotIn("", colours)
        self.assertEqual(colours.count("rgb(0, 114, 178)"), 1)
        self.page("fake", fragment="#call=0.5.1")
        told = self.one("table.details").text
        self.assertIn("issued 22 us\nbegun 40 us, when its group was through with the calls before\nended 58 us", told)
        self.page("fake", fragment="#call=0.0.1")
        self.assertEqual(self.one("table.details").text, "computation more, of 0 compute\nbegun 10 us\nended 15 us")

    # --- moving about

    def test_zoom_pan_and_all_by_keys_wheel_and_buttons(self):
        self.page("passes")
        self.assertNotIn("x", self.fragment())
        full = self.js("return rankloom.timelines[0].span()")
        self.keys("+")
        x0, x1 = map(float, self.fragment()["x"][0].split(","))
        self.assertAlmostEqual(x1 - x0, (full[1] - full[0]) / 1.5, places=3)
        self.keys(Keys.ARROW_RIGHT)
        self.assertGreater(float(self.fragment()["x"][0].split(",")[0]), x0)
        self.keys("0")
        self.assertNotIn("x", self.fragment())
        webdriver.ActionChains(self.driver).scroll_from_origin(ScrollOrigin.from_element(self.one("canvas.bars")), 0, -300).perform()
        self.drawn()
        self.assertIn("x", self.fragment())
        self.one("button.all").click()
        self.assertNotIn("x", self.fragment())
        self.one("button.in").click()
        self.one("button.out").click()
        self.assertNotIn("x", self.fragment())

    def test_hover_and_click_tell_of_a_call(self):
        self.page("deadlock")
        self.move_to(1, 3)
        self.wait(lambda: "rank 1 at" in self.one(".under").text, "nothing is told")
        told = self.one(".under").text
        self.assertRegex(self.js("return rankloom.timelines[0].describe({rank: 1, i: 4, value: 5})"), r" \(not complete: rank 1 waits for rank 2\) ")
        self.assertRegex(told, r"rank 1 at column 3\.\d: send seq \d+ to rank 3, tag 5 \(completed\) \[group 0, write_runs\.cc:\d+\]")
        self.move_to(1, 3, click=True)
        details = self.one("table.details").text
        self.assertIn("int64 [2] -> nothing", details)
        self.assertIn("matched with rank 3", details)
        self.assertEqual(self.fragment()["call"], ["0.1.3"])
        self.keys("p")
        self.assertIn("all_reduce seq 3", self.one("table.details").text)
        self.assertIn("members that came ranks 0-4", self.one("table.details").text)
        self.keys("j")
        self.assertEqual(self.fragment()["call"], ["0.2.2"])

    def test_keys_are_told_and_colours_stand_for_groups(self):
        self.page("mismatch")
        self.assertEqual(self.texts(".legend span")[:3], ["all_reduce (17)", "split_group (4)", "broadcast (1)"])
        self.keys("?")
        self.assertIn("next and last call of the rank", self.one("details.keys table").text)
        self.assertEqual(self.fragment()["keys"], ["yes"])
        self.js("const s = document.querySelector('select[name=colour]'); s.value = 'group'; s.dispatchEvent(new Event('change'))")
        self.drawn()
        self.assertEqual(self.texts(".legend span")[0], "group 0 (16)")
        self.assertEqual(self.fragment()["colour"], ["group"])
        self.page("mismatch", fragment="#bytes=yes&colour=group")
        self.assertEqual(self.texts(".legend span")[0], "group 0 (16)")
        self.assertGreater(len(self.texts("table.bytes tr")), 3)

    def test_filters_leave_out_ranks_and_calls(self):
        self.page("passes")
        canvas = self.one("canvas.bars")
        self.assertEqual((canvas.get_attribute("data-ranks"), canvas.get_attribute("data-drawn")), ("4", "60"))
        self.one("input[name=rank]").send_keys("1-2")
        self.drawn()
        self.assertEqual((canvas.get_attribute("data-ranks"), canvas.get_attribute("data-drawn")), ("2", "30"))
        self.js("const s = document.querySelector('select[name=op]'); s.value = 'send'; s.dispatchEvent(new Event('change'))")
        self.drawn()
        self.assertEqual(canvas.get_attribute("data-drawn"), "10")
        self.one("input[name=text]").send_keys("no such file")
        self.drawn()
        self.assertEqual(canvas.get_attribute("data-drawn"), "0")
        self.assertEqual(self.fragment(), {"axis": ["order"], "rank": ["1-2"], "op": ["send"], "text": ["no such file"]})

    def test_a_link_shows_what_was_shown(self):
        self.page("passes", fragment="#axis=time&rank=0,2&x=10000,60000&call=0.2.4&theme=dark")
        canvas = self.one("canvas.bars")
        self.assertEqual(canvas.get_attribute("data-ranks"), "2")
        self.assertEqual(self.js("return rankloom.timelines[0].span()"), [10000, 60000])
        self.assertEqual(self.one("select[name=axis]").get_attribute("value"), "time")
        self.assertEqual(self.one("input[name=rank]").get_attribute("value"), "0,2")
        self.assertIn("the 5th call of rank 2", self.one("table.details").text)
        self.assertEqual(self.js("return document.documentElement.dataset.theme"), "dark")
        self.one("button.theme").click()
        self.assertEqual(self.fragment()["theme"], ["light"])
        # The unfolded parts, too.
        self.page("deadlock")
        self.all("table.waits summary")[1].click()
        self.wait(lambda: "open" in self.fragment(), "it is not in the fragment")
        opened = self.fragment()["open"][0]
        self.page("deadlock", fragment=f"#open={opened}")
        self.assertEqual(self.js("return [...document.querySelectorAll('table.waits details')].map((e) => e.open)"), [False, True, False, False])
        self.page("passes", fragment="#axis=no&x=a,b&y=9,3&call=7.7.7&rank=zzz&open=x,99")
        self.assertEqual(canvas_count(self), "4")

    def test_the_rerun_command_is_copied(self):
        self.page("deadlock")
        wanted = self.one(".rerun code").text
        self.assertIn("RANKLOOM_SEED=7", wanted)
        self.one("button.copy").click()
        self.wait(lambda: self.one("button.copy").text == "copied", "it is not copied")
        field = self.one("input[name=text]")
        field.click()
        field.send_keys(Keys.CONTROL, "v")
        self.assertEqual(field.get_attribute("value"), wanted)

    def test_the_picture_is_not_empty_in_light_and_dark_and_on_paper(self):
        for theme in ("light", "dark"):
            self.page("deadlock", fragment=f"#theme={theme}")
            colours = self.js(
                """const c = document.querySelector('canvas.bars'), seen = new Set();
                const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
                for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
                return [seen.size, seen.has(0x0072b2), seen.has(0x009e73)];"""
            )
            self.assertGreater(colours[0], 10)
            self.assertEqual(colours[1:], [True, True])
        self.assertGreater(len(self.driver.execute_cdp_cmd("Page.printToPDF", {})["data"]), 10_000)
        try:
            self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
            self.assertFalse(self.one(".controls").is_displayed())
            # Lines of code stand below each other.
            tops = [line.rect["y"] for line in self.all(".places pre span")]
            self.assertEqual(tops, sorted(set(tops)))
        finally:
            self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def half_call_a_barrier(line):
    """Of the run `many`: ranks from 32 on call a barrier last."""
    if line.get("t") == "kinds":
        line["kinds"].append({**line["kinds"][0], "op": "barrier", "in": [], "out": [], "dtype": 0})
        line["kinds"].append({**line["kinds"][0], "line": line["kinds"][0]["line"] + 1})
        half_call_a_barrier.kind = len(line["kinds"]) - 2
    if line.get("t") == "calls" and line["rank"] != 41:
        line["kind"][-1] = half_call_a_barrier.kind + (line["rank"] < 32)


def canvas_count(test):
    return test.one("canvas.bars").get_attribute("data-ranks")


def images(folder, trace_transformer):
    """A picture of each kind of page; small ones, which a page of documentation can show."""
    with tempfile.TemporaryDirectory() as runs:
        subprocess.run([WRITE_RUNS, runs], check=True)
        subprocess.run([WRITE_RUNS, runs, "big", "1024", "100"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([trace_transformer, "--layers=8", "--micro_batches=8", "--out", runs], check=True, stdout=subprocess.DEVNULL)
        driver = browser()
        try:
            for name, shown in IMAGES.items():
                png = smaller(picture(driver, pathlib.Path(runs), *shown))
                assert png.startswith(b"\x89PNG") and len(png) < 150_000, f"{name}: {len(png)} bytes"
                (pathlib.Path(folder) / f"{name}.png").write_bytes(png)
                print(f"{name}.png: {len(png) / 1000:.0f} kB")
        finally:
            driver.quit()


def pixels_of(png):
    """Width, and the rows of a PNG of 8 bits a channel: bytes, `channels` a pixel."""
    at, data, width, channels = 8, b"", 0, 0
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        body = png[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, _, depth, colours = struct.unpack(">IIBB", body[:10])
            channels = {2: 3, 6: 4}[colours]
            assert depth == 8
        data += body if kind == b"IDAT" else b""
        at += 12 + size
    raw, stride, rows = zlib.decompress(data), width * channels, [bytes(width * channels)]
    for begin in range(0, len(raw), stride + 1):
        kind, row, up = raw[begin], bytearray(raw[begin + 1 : begin + 1 + stride]), rows[-1]
        for i in range(stride if kind else 0):
            left, above, corner = (row[i - channels], up[i], up[i - channels]) if i >= channels else (0, up[i], 0)
            near = left + above - corner
            paeth = min((abs(near - left), 0, left), (abs(near - above), 1, above), (abs(near - corner), 2, corner))[2]
            row[i] = (row[i] + (0, left, above, (left + above) // 2, paeth)[kind]) & 255
        rows.append(bytes(row))
    return width, channels, rows[1:]


def smaller(png):
    """The same picture in its 256 most frequent colours."""
    width, channels, rows = pixels_of(png)
    lines = [[row[i : i + 3] for i in range(0, len(row), channels)] for row in rows]
    counts = collections.Counter(colour for line in lines for colour in line)
    palette = [colour for colour, _ in counts.most_common(256)]
    number = {colour: i for i, colour in enumerate(palette)}
    for colour in counts:
        if colour not in number:
            number[colour] = min(range(len(palette)), key=lambda i: sum((a - b) ** 2 for a, b in zip(palette[i], colour, strict=True)))
    data = b"".join(b"\0" + bytes(number[colour] for colour in line) for line in lines)
    out = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", width, len(rows), 8, 3, 0, 0, 0)
    for kind, body in ((b"IHDR", header), (b"PLTE", b"".join(palette)), (b"IDAT", zlib.compress(data, 9)), (b"IEND", b"")):
        out += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return out


def picture(driver, folder, runs, fragment, hidden):
    html = folder / "run.html"
    files = [folder / (run if run.endswith(".json") else f"{run}.rlrun") for run in runs]
    report = [sys.executable, ROOT / "tools" / "rankloom_command", "report", *files, "-o", html, "--source", ROOT]
    subprocess.run(report, check=True, stdout=subprocess.DEVNULL)
    driver.set_window_size(1100, 900)
    driver.get("about:blank")
    driver.get(f"file://{html}#theme=light&{fragment}")
    end = time.monotonic() + SLOW
    while not driver.execute_script("return document.documentElement.dataset.ready === 'yes'") and time.monotonic() < end:
        time.sleep(0.1)
    # Where the program lies on the machine that makes the picture is nobody's business.
    height = driver.execute_script(
        """document.querySelectorAll(arguments[0] + ', #plain, details.keys').forEach((e) => e.remove());
        // Not in the script with the data: a text of many characters without a space takes this pattern minutes.
        const walk = document.createTreeWalker(document.getElementById('page'), NodeFilter.SHOW_TEXT);
        while (walk.nextNode()) {
          const text = walk.currentNode;
          text.data = text.data.replace(/[^\\s[(]*write_runs .*$/, './train').replace(/[^\\s[(]*write_runs\\.cc/g, 'train.cc');
        }
        return Math.ceil(document.getElementById('page').getBoundingClientRect().bottom) + 8;""",
        hidden,
    )
    clip = {"x": 0, "y": 0, "width": 1100, "height": height, "scale": 1}
    return base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})["data"])


if __name__ == "__main__":
    WRITE_RUNS = str(pathlib.Path(sys.argv.pop(1)).resolve())
    if "--images" in sys.argv:
        images(*sys.argv[sys.argv.index("--images") + 1 :])
    else:
        WRITE_RANDOM_RUNS = str(pathlib.Path(sys.argv.pop(1)).resolve())
        unittest.main()
