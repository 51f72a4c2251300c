#!/usr/bin/env python3
"""Holds the folders, the rooms in them and the units in these to an order, and the core to the list of things that would make a
run nondeterministic.

    tools/check_layers.py [ROOT]

Runs as the test `layers` and in ./dev lint. Prints `path:line: what is wrong` and exits with 1 if anything is.
A new exception is one line in EXCEPTIONS, or in BEHIND for a circle of units, with its reason.
"""

import fnmatch
import pathlib
import re
import sys

# Layers, lowest first: each may include itself and what stands left of it.
LAYERS = ["sim", "fake_store", "world", "collectives", "harness"]
# On top of them: these may include every layer, and nothing includes these but themselves.
ON_TOP = ["bridge", "tools", "bench", "examples", "tests"]
# Public headers, include/rankloom/NAME.h, and the folder or room that each belongs to: its sources stand there, and what
# may include that folder may include it. The options of a world are those of its run as well, so they stand low; the one
# function beside them is that of world/run_options.cc.
FACE = "include/rankloom/"
PUBLIC = {
    "error": "sim/base",
    "random": "sim/base",
    "version": "sim/base",
    "schedule": "sim/schedule",
    "faults": "sim/schedule",
    "options": "sim/schedule",
    "sync": "sim/sync",
    "store": "fake_store",
    "group": "world",
    "world": "world",
    "tensor": "collectives/call",
    "collective_call": "collectives/call",
    "work": "collectives/work",
    "stream": "collectives/work",
    "process_group": "collectives/group",
    "device_mesh": "collectives/group",
    "records": "collectives/records",
    "chakra": "collectives/records",
    "fake": "collectives/fake",
    "cuda": "collectives/cuda",
    "mpi": "collectives/mpi",
    "explore": "harness/explore",
    "matchers": "harness",
    "testing": "harness",
}
# Those that only include others: for users, never for the layers themselves.
UMBRELLAS = {"rankloom/rankloom.h": "collectives", "rankloom/testing.h": "harness", "rankloom/cuda.h": "collectives",
             "rankloom/mpi.h": "collectives"}
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".cpp", ".hpp"}

# Rooms, the folders within a layer, lowest first: each may include itself and what stands left of it.
ROOMS = {
    "sim": ["base", "engine", "schedule", "scheduler", "sync", "faults"],
    "collectives": ["call", "work", "kernels", "ops", "group", "streams", "records", "threaded", "fake", "cuda", "mpi"],
}
# Files above all rooms of their folder, and the rooms that each may include: each puts rooms together and is reached by link
# only, so nothing includes one.
ROOFS = {
    "collectives/backends.cc": ["group", "threaded", "fake"],
}

# (headers, files that may include them, who that is). A glob's * crosses folders; a glob after ! takes files out again.
PACKAGES = [
    (r"boost/", ["sim/engine/fiber_engine.*", "bench/*", "tests/*"], "the fiber engine"),
    (r"(gtest|gmock)/|rankloom/(testing|matchers)\.h",
     ["harness/*", "!harness/explore/*", "!harness/mpi/*", "include/rankloom/matchers.h", "include/rankloom/testing.h", "tests/*"],
     "what tests are made of"),
    (r"(torch|ATen|c10|pybind11)/|(Python|pybind11|torch)\b", ["bridge/*", "tests/bridge/*"], "the bridge"),
    (r"(hwy|tbb|oneapi)/", ["collectives/kernels/*", "bench/*", "tests/*"], "collectives/kernels"),
    (r"cu(da|da_runtime|da_runtime_api|da_fp16|da_bf16|da_fp8)\.h|cuda/", ["collectives/cuda/*", "bridge/*", "bench/*", "tests/*"],
     "collectives/cuda"),
    (r"mpi\.h", ["collectives/mpi/*", "harness/mpi/*", "bench/*", "tests/*"], "collectives/mpi and harness/mpi"),
    (r"benchmark/", ["bench/*"], "bench"),
    (r"google/protobuf/", ["collectives/records/chakra.*", "tests/*"], "Chakra traces"),
    (r"absl/flags/", ["tools/*", "bench/*", "examples/*", "tests/*"], "programs, which have flags"),
    (r"absl/random/", [], "nobody: include/rankloom/random.h is our generator"),
    (r"rankloom/(rankloom|cuda|mpi)\.h",
     ["bridge/*", "tools/*", "bench/*", "examples/*", "tests/*", "include/*", "collectives/cuda/*", "collectives/mpi/*",
      "harness/mpi/*"],
     "users of the library"),
]

CORE = ["sim", "fake_store", "world", "collectives"]
# (name, pattern over code without comments and strings, folders, why)
BANNED = [
    ("condition_variable", r"std::condition_variable|<condition_variable>", CORE, "wait through RankCondVar"),
    ("barrier", r"std::barrier|<barrier>", CORE, "wait through RankCondVar"),
    ("future", r"std::(shared_)?future\b|std::promise\b|std::packaged_task\b|std::async\b|<future>", CORE,
     "wait through RankCondVar"),
    ("sleep", r"\bthis_thread::sleep_(for|until)\b|\bSleepFor\s*\(|\b(usleep|nanosleep|clock_nanosleep)\s*\(|(?<![\w.>])sleep\s*\(\s*\d", CORE,
     "time is virtual; park with a deadline"),
    ("wall clock",
     r"\bsystem_clock\b|\bhigh_resolution_clock\b|absl::Now\b|\bGetCurrentTimeNanos\b|\bgettimeofday\b|\bCLOCK_REALTIME\b"
     r"|(?<![\w.>:])(std::|::)?time\s*\(\s*(nullptr|NULL|0|&\s*\w+)\s*\)", CORE, "time is virtual; ask the world's clock"),
    ("steady_clock", r"\bsteady_clock\b|\bCLOCK_MONOTONIC\b", CORE, "time is virtual; ask the world's clock"),
    ("random", r"\brandom_device\b|absl::(Insecure)?BitGen\b|\bmt19937|(?<![\w.>:])(std::|::)?s?rand\s*\(", CORE,
     "the seed is the only source of choice; use include/rankloom/random.h"),
    ("getenv", r"\b(secure_)?getenv\s*\(", [*CORE, "harness"], "the environment is read in world/run_options.cc"),
    ("file", r"\b(ofstream|fstream)\b(?!>)|\bf(re)?open\s*\(|\bfwrite\s*\(|\bfputs\s*\(|(?<![\w.>])p?writev?\s*\(\s*\w*fd", [*CORE, "harness"],
     "write_file() looks at each step that can fail"),
    ("Linux", r"<linux/|<sys/(syscall|prctl|epoll|eventfd|signalfd|timerfd|inotify|auxv|sendfile)\.h>|<(link|elf)\.h>"
     r"|\b(gettid|pipe2|accept4|prctl|syscall|eventfd|sched_[gs]etaffinity|dl_iterate_phdr)\s*\(|\bprogram_invocation_\w+|\bSYS_\w+"
     r"|\b(MAP_NORESERVE|SOCK_CLOEXEC|SOCK_NONBLOCK|MSG_NOSIGNAL|F_OFD_SETLKW?|MADV_NOHUGEPAGE)\b", [*CORE, "harness"],
     "sim/base/system.h has it, or may, with a way for other systems"),
    ("opened record", r"\brecorder\(\)\s*\.\s*open(_again)?\s*\(", [*CORE, "harness"], "GroupFront opens a call's flight record"),
    ("closed record", r"\brecorder\(\)\s*\.\s*close\s*\(", [*CORE, "harness"], "close_record() closes a call's flight record"),
    ("thrown error", r"\bthrow\s+(rankloom::)?DistError\b", [*CORE, "harness"],
     "refuse() and throw_dist_error() throw errors, with rank, group and operation"),
    ("prefetch", r"\b(__builtin|_mm)_prefetch\b", CORE, "memory is fetched ahead by the steps of sim/base/prefetch.h"),
]

# (rule, files, reason)
EXCEPTIONS = [
    ("condition_variable", "sim/base/system.cc", "threads sleep on one where there is no futex"),
    ("steady_clock", "sim/*", "the monotonic clock of the free gear"),
    ("Linux", "sim/base/system.cc", "the way of Linux beside that of others"),
    ("Linux", "sim/base/parker.cc", "the same, on a hot path"),
    ("Linux", "sim/base/thread_stack.cc", "the same, in a handler of signals"),
    ("Linux", "sim/engine/stack_pool.cc", "flags that are left out elsewhere"),
    ("Linux", "sim/engine/valgrind_stack.cc", "the same"),
    ("Linux", "fake_store/file_log.cc", "locks of files, or flock()'s"),
    ("Linux", "harness/explore/campaign_identity.cc", "build ids, or sizes and times of files"),
    ("Linux", "harness/explore/forked_workers.cc", "a descriptor that tells of a process's end, or none"),
    ("getenv", "world/run_options.cc", "the one reader of the environment"),
    ("file", "sim/base/write_file.cc", "the one writer of files"),
    ("opened record", "collectives/group/group_front.cc", "the one place that opens a flight record"),
    ("closed record", "collectives/work/close_records.h", "the one place that closes a flight record"),
    ("thrown error", "sim/base/dist_error.cc", "the one place that throws an error"),
    ("prefetch", "sim/base/prefetch.h", "the steps of fetching ahead"),
    ("prefetch", "sim/sync/rank_mutex.h", "the waiters that notify_all() will wake, one of those steps"),
    ("file", "fake_store/file_log.cc", "appends to a file that processes share, and looks at each step, too"),
]

# (unit, public header, reason): a unit that needs what the header declares, and on which the sources of the header are built. Of a
# header and the state that it hides there is no other way: both know each other. A RunReport, too, is declared with the World whose
# state writes its file before a process that hangs ends. These includes close no circle; any other does.
BEHIND = [
    ("collectives/group/group_front", "rankloom/process_group.h", "the state of a ProcessGroup, which it points to"),
    ("collectives/work/work_state", "rankloom/work.h", "the state that a Work is a handle on, which makes such handles"),
    ("world/world_state", "rankloom/world.h", "the state of a World, and of a RankContext, whose subclass it is"),
    ("world/run_file", "rankloom/world.h", "the file of a RunReport, a value that is declared there"),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^()\s\\]{0,16})\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'',
    re.DOTALL)


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def matches(path, globs):
    inside = any(fnmatch.fnmatchcase(path, g) for g in globs if not g.startswith("!"))
    return inside and not any(fnmatch.fnmatchcase(path, g[1:]) for g in globs if g.startswith("!"))


def home_of(path):
    """The place in the layers of a file, or of a header as includes name it: that of the source for a public header."""
    name = path.removeprefix("include/")
    if name in UMBRELLAS:
        return UMBRELLAS[name] + "/" + name.split("/")[1]
    stem = name.removeprefix("rankloom/").removesuffix(".h")
    return f"{PUBLIC[stem]}/{stem}.h" if name.startswith("rankloom/") and stem in PUBLIC else path


def folders_open_to(path):
    """The project folders that the file may include from."""
    folder = path.split("/")[0]
    if folder in LAYERS:
        return LAYERS[: LAYERS.index(folder) + 1]
    # Tests and benchmarks of a program include what the program is made of.
    return [*LAYERS, folder, *{"tests": ["examples", "bench", "tools"], "bench": ["examples"]}.get(folder, [])]


def room_of(path):
    """The room of a file or header, "base" of sim/base/task.h; None in folders without rooms, and outside of the rooms."""
    parts = path.split("/")
    return parts[1] if len(parts) > 2 and parts[1] in ROOMS.get(parts[0], []) else None


def wrong_room(path, header):
    """Why the file may not include the header, where both are in rooms of one folder, or one is a roof."""
    folder, room, other = path.split("/")[0], room_of(path), room_of(header)
    if header in ROOFS:
        return "nothing includes a roof"
    if other is None or header.split("/")[0] != folder:
        return None
    if path in ROOFS:
        return None if other in ROOFS[path] else f"the roof {path} may include {', '.join(ROOFS[path])}, not room {other}"
    if room is None:
        return None
    rooms = ROOMS[folder]
    return f"room {room} may not include room {other}, which stands right of it" if rooms.index(other) > rooms.index(room) else None


def without_comments(text):
    # Includes in comments are no includes, but their names look like strings: blank only comments.
    return NOT_CODE.sub(lambda m: blank(m) if m.group(0).startswith(("//", "/*", "R")) else m.group(0), text)


def check_includes(path, text):
    code = without_comments(text)
    home = home_of(path)
    for found in INCLUDE.finditer(code):
        quote, header, line = found.group(1), found.group(2), line_of(code, found.start(2))
        place = home_of(header)
        first = place.split("/")[0]
        package = next((p for p in PACKAGES if re.match(p[0], header)), None)
        if package is not None:
            if not matches(path, package[1]):
                yield line, f"<{header}> is for {package[2]} only"
        elif "/" in header and first in LAYERS + ON_TOP:
            if first not in folders_open_to(home):
                yield line, f'"{header}": {home.split("/")[0]} may not include {first}'
            elif wrong_room(home, place) is not None:
                yield line, f'"{header}": {wrong_room(home, place)}'
        elif quote == '"' and first != "absl":
            yield line, f'"{header}": includes start at the root ("folder/file.h")'


def check_banned(path, text):
    folder = path.split("/")[0]
    code = NOT_CODE.sub(blank, text)
    for name, pattern, folders, why in BANNED:
        if folder not in folders or any(rule == name and matches(path, [glob]) for rule, glob, _ in EXCEPTIONS):
            continue
        for found in re.finditer(pattern, code):
            yield line_of(code, found.start()), f"{found.group(0).strip()} is banned here ({name}): {why}"


def check_rooms(path):
    name = path.removeprefix(FACE).removesuffix(".h")
    if path.startswith(FACE) and name not in PUBLIC and "rankloom/" + name + ".h" not in UMBRELLAS:
        yield 1, "PUBLIC says of each public header which room it belongs to"
    folder = path.split("/")[0]
    if folder in ROOMS and room_of(path) is None and path not in ROOFS:
        yield 1, f"a file of {folder} stands in one of its rooms: {', '.join(ROOMS[folder])}"


def dead_exceptions(root):
    """Entries of EXCEPTIONS and BEHIND, and folders and files of the layers in PACKAGES, that no file needs."""
    texts = {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8")
             for folder in [*LAYERS, FACE] for file in sorted((root / folder).rglob("*")) if file.suffix in SUFFIXES}
    for rule, glob, _ in EXCEPTIONS:
        pattern = next(pattern for name, pattern, *_ in BANNED if name == rule)
        if not any(matches(path, [glob]) and re.search(pattern, NOT_CODE.sub(blank, text)) for path, text in texts.items()):
            yield f"EXCEPTIONS: {rule} in {glob}: no file needs it"
    for headers, globs, _ in PACKAGES:
        for glob in globs:
            if (glob.split("/")[0] in LAYERS or glob.startswith(FACE)) and not any(
                    matches(path, [glob]) and any(re.match(headers, found.group(2)) for found in INCLUDE.finditer(without_comments(text)))
                    for path, text in texts.items()):
                yield f"PACKAGES: {headers} in {glob}: no file needs it"
    for unit, header, _ in BEHIND:
        units = unit_includes(root, [entry for entry in BEHIND if entry[:2] != (unit, header)])
        if unit_of(header) not in units.get(unit, {}) or unit not in ways_from(units, unit_of(header)):
            yield f"BEHIND: {unit} includes {header}: no circle needs it"


def unit_of(path):
    """Of a header and its source, which are one unit: of a public header the source of this name in its folder or room."""
    return home_of(path).rsplit(".", 1)[0]


def unit_includes(root, behind):
    """Unit -> the units that it includes, each with one (file, line) of an include, but for those in `behind`. Layers only."""
    excused = {entry[:2] for entry in behind}
    units = {}
    for folder in [*LAYERS, FACE]:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in SUFFIXES or not file.is_file() or file.relative_to(root).as_posix().removeprefix("include/") in UMBRELLAS:
                continue
            path, code = file.relative_to(root).as_posix(), without_comments(file.read_text(encoding="utf-8"))
            includes = units.setdefault(unit_of(path), {})
            for found in INCLUDE.finditer(code):
                header = found.group(2).removeprefix("include/")
                if (unit_of(path), header) in excused:
                    continue
                if home_of(header).split("/")[0] in LAYERS and unit_of(header) != unit_of(path):
                    includes.setdefault(unit_of(header), (path, line_of(code, found.start(2))))
    return units


def ways_from(units, start):
    """The units that `start` reaches by one include or more, as unit -> the unit before it on a shortest way."""
    before, ring = {}, [start]
    while ring:
        found = {}
        for unit in ring:
            for other in units.get(unit, {}):
                if other not in before:
                    before[other] = found[other] = unit
        ring = list(found)
    return before


def circles(units):
    """Each largest set of units of which every one reaches every other, and a shortest circle through the first of them."""
    reached = {unit: ways_from(units, unit) for unit in units}
    seen = set()
    for unit in sorted(units):
        if unit in seen or unit not in reached[unit]:
            continue
        members = sorted(other for other in reached[unit] if unit in reached.get(other, {}))
        seen.update(members)
        circle = [unit]
        while len(circle) == 1 or circle[0] != unit:
            circle.insert(0, reached[unit][circle[0]])
        yield members, circle


def check_units(root):
    """No circle of units in the layers."""
    units = unit_includes(root, BEHIND)
    for members, circle in circles(units):
        path, line = units[circle[0]][circle[1]]
        knot = f" (a knot of {len(members)}: {', '.join(members)})" if len(members) > len(circle) - 1 else ""
        yield path, line, f"circle of units: {' -> '.join(circle)}{knot}"


def check(root):
    """All findings under `root`, as (path, line, text), and how many files were read."""
    findings, count = [], 0
    for folder in [*LAYERS, *ON_TOP, FACE]:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in SUFFIXES and file.is_file():
                count += 1
                path, text = file.relative_to(root).as_posix(), file.read_text(encoding="utf-8")
                found = [*check_rooms(path), *check_includes(path, text), *check_banned(path, text)]
                findings += [(path, line, what) for line, what in sorted(found)]
    findings += check_units(root)
    return findings, count


def main(arguments):
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent)
    findings, count = check(root)
    findings += [("tools/check_layers.py", 1, what) for what in dead_exceptions(root)]
    for path, line, what in findings:
        print(f"{path}:{line}: {what}")
    print(f"check_layers: {count} files, {len(findings)} findings")
    return 1 if findings or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
