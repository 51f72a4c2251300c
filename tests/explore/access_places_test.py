#!/usr/bin/env python3
"""Every function of the library that tells the exhaustive search of an access stands in left_out_test.cc.

    access_places_test.py SOURCE_ROOT

That test holds what the search loses without each of them, or why it loses nothing.
"""

import pathlib
import re
import sys

TABLE = "tests/explore/left_out_test.cc"
FOLDERS = ["sim", "fake_store", "world", "collectives"]
FILES = ["harness/explore/baseline.cc"]
# The record itself, and who only reads it; worlds of MPI processes, which have no schedules to search.
NOT_PLACES = ("sim/schedule/step_record.cc", "sim/schedule/step_record.h", "sim/schedule/schedule_tree.cc", "collectives/mpi/")

# But for tell_of_own_thread(), which is a doubt.
TELLS = re.compile(
    r"record\w*(\(\))?->(access|signal|await|raise|lower|miss|pass|settle_memory|write_memory|enter_memory|time_passed)\("
    r"|\btold\.(read|commute|write|signal|await|raise|lower|miss|pass)\("
    r"|\bTold\([^()]*\)\.\w+\("
    r"|(?<![:>\w])(state_->|self->|table_\.|this->)?(touched|waited|touched_group|record_group|uses_memory_of|tell_(?!of_own_thread)\w+)\("
)
# Functions that hand on what they are told, in the name of their callers.
HAND_ON = {"read", "commute", "write", "signal", "await", "raise", "lower", "miss", "pass", "access", "touched", "waited",
           "touched_group", "record_group", "record_touch", "record_wait", "tell", "tell_keys", "tell_condition",
           "tell_presence", "tell_set", "tell_wait", "tell_timeout", "ended_too_late", "uses_memory_of"}


def enclosing(lines, at, deepest):
    """The name of the function that line `at` stands in, "acquire" without its class; its head is indented by `deepest` at most."""
    for i in range(at, -1, -1):
        line = lines[i]
        indent = len(line) - len(line.lstrip())
        if indent > deepest or not line.strip() or re.match(r"\s*(//|#|public:|private:|protected:|\}|\)|if |for |return |case )", line):
            continue
        found = re.search(r"(~?\w+)\(", re.sub(r"ABSL_\w+\([^()]*\)", "", line))
        if found and not line.rstrip().endswith(";"):
            return found.group(1)
    return None


def main():
    root = pathlib.Path(sys.argv[1])
    table = (root / TABLE).read_text()
    known = set()
    for name in re.findall(r'"[a-z ]+: ([^"]*)"', table):
        known |= {part.split("::")[-1] for part in name.split(" < ")}
    wrong, places, sources = [], 0, ""
    for folder in [*FOLDERS, *FILES]:
        within = [*(root / folder).glob("**/*.cc"), *(root / folder).glob("**/*.h")]
        for path in sorted(within if folder in FOLDERS else [root / folder]):
            name = path.relative_to(root).as_posix()
            if name.startswith(NOT_PLACES):
                continue
            text = path.read_text()
            sources += text
            lines = text.splitlines()
            for at, line in enumerate(lines):
                code = re.sub(r"//.*", "", line)
                # Declarations, and what sim/sync/sync.cc tells by.
                if not TELLS.search(code) or re.match(r"\s*(void|bool) \w+\(", code):
                    continue
                if name == "sim/sync/sync.cc" and "record_->" in code:
                    continue
                function = enclosing(lines, at, 2 if path.suffix == ".h" else 0)
                if function is None or function in HAND_ON:
                    continue
                places += 1
                if function not in known:
                    wrong.append(f"{name}:{at + 1}: {function} tells of an access, and is not in {TABLE}")
    for function in sorted(known):
        if re.fullmatch(r"~?\w+", function) and f"{function}(" not in sources:
            wrong.append(f"{TABLE}: there is no {function}() any more")
    print(f"{places} places")
    if places < 60:
        wrong.append("fewer places than there were: does this script still know what telling looks like?")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
