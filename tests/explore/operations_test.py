#!/usr/bin/env python3
"""Every public operation that a rank can call is one that small programs are drawn from, or stands in EXCEPTIONS with a reason.

    operations_test.py SOURCE_ROOT

Reads the classes' public methods, and the headers' free functions, out of the headers, and the operations out of the table in
small_program.cc. brute_force_test holds that each row of that table is drawn.
"""

import pathlib
import re
import sys

TABLE = "tests/explore/small_program.cc"

# header: classes of which ranks call the public methods. Free functions of the headers count, too.
HEADERS = {
    "include/rankloom/process_group.h": ["ProcessGroup"],
    "include/rankloom/work.h": ["Work", "Future", "Promise"],
    "include/rankloom/stream.h": ["Stream", "Event", "SimStream"],
    "include/rankloom/device_mesh.h": ["DeviceMesh"],
    "include/rankloom/store.h": ["Store", "PrefixStore"],
    "include/rankloom/sync.h": ["Mutex", "MutexLock", "CondVar", "Latch", "Watched"],
    "include/rankloom/world.h": ["RankContext", "World", "OutsideWaker", "RankLocal", "WorldLocal"],
}

SAME = "says the same all the time"
INNER = "called by the library and by subclasses, not by ranks"
OUTSIDE = "for the code around a run"
EXCEPTIONS = {
    r"ProcessGroup::(execute|make_member|leave|ProcessGroup)": INNER,
    r"ProcessGroup::(group|context)": SAME,
    r"(Future|Event)::\1": "made by the library",
    r"Event::state": INNER,
    r"Stream::\w+": "SimStream's",
    r"SimStream::issue": INNER,
    r"DeviceMesh::(DeviceMesh|ndim|shape|dim_names|size|get_coordinate|get_local_rank|slice|base|text)": SAME,
    r"init_mixed_mesh": "fake dimensions have no peers, and its real groups are made as those of init_device_mesh()",
    r"Store::(execute|kind)": INNER,
    r"PrefixStore::(execute|kind|underlying)": INNER,
    r"(Mutex|CondVar|Latch|Watched|WorldLocal)::\1": "what ranks share is made before the run, or by a WorldLocal",
    r"RankContext::(world|store)": SAME,
    r"World::(World|options|size|scheduler|store|run|attach|detach|report|context|world_group|poison|late_completion|faults)":
        OUTSIDE,
    r"World::(next_world_group|add_group|leave_group|leave_group_absent|groups|keep_all_groups|at_end|forget_at_end|forget_on_abort|run_helper)":
        INNER,
    r"World::(describe|ended_text)": "for reports and debuggers",
    r"World::(outside_waker)|OutsideWaker::\w+": "real time: no schedule decides when it ends",
    r"run_world": OUTSIDE,
}

VALUE = "a value: no rank meets another one in it"
SUBCLASS = "its operations are those of its base class"
# The public classes that stand in no row of HEADERS.
CLASSES = {
    "CodeSite": VALUE, "DistError": VALUE, "Fault": VALUE, "FaultPlan": VALUE, "Group": VALUE, "Prng": VALUE, "Trace": VALUE,
    "Schedule": VALUE, "WorldOptions": VALUE, "RunReport": VALUE, "ReduceOp": VALUE, "CollectiveCall": VALUE, "StoreCall": VALUE,
    "StoreReply": VALUE, "FakeOptions": VALUE, "CallOptions": VALUE, "GroupOptions": VALUE, "P2POp": VALUE, "Half": VALUE,
    "BFloat16": VALUE, "Float8E4M3FN": VALUE, "Float8E5M2": VALUE, "Dims": VALUE, "Device": VALUE, "TensorView": VALUE,
    "ConstTensorView": VALUE, "CostModel": VALUE, "Link": VALUE, "FlightDumpOptions": VALUE, "DLDataType": VALUE,
    "DLDevice": VALUE, "DLTensor": VALUE, "Strategy": OUTSIDE, "ExploreOptions": OUTSIDE,
    "ExploreReport": OUTSIDE, "RankOutput": OUTSIDE, "RankTrace": "lines for assertions of one rank", "MultiThreadedTestCase": OUTSIDE,
    "CallRecord": "of one rank", "FakeProcessGroup": SUBCLASS, "HashStore": SUBCLASS, "FileStore": SUBCLASS, "FakeStore": SUBCLASS,
    "CudaStreamView": "needs a device", "CudaStream": "needs a device", "CudaTensor": "needs a device",
}


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/|^\s*#[^\n]*", "", text, flags=re.S | re.M)


def body_after(text, at):
    """The text between the brace that opens at or after `at` and the one that closes it."""
    begin = text.index("{", at) + 1
    depth = 1
    for i in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[begin:i]
    raise ValueError("a brace that is not closed")


def flat(text):
    """Without what stands between braces, whose place a semicolon takes, and without default arguments' parentheses."""
    out, depth = [], 0
    for c in text:
        if c == "{":
            depth += 1
        elif c == "}":
            depth -= 1
            if depth == 0:
                out.append(";")
        elif depth == 0:
            out.append(c)
    return "".join(out)


def names_in(declarations):
    names = set()
    for declaration in flat(declarations).split(";"):
        declaration = " ".join(declaration.split())
        if re.search(r"= delete|^friend |^using |^struct |^class |^enum |operator|~|^namespace |static_assert|^extern ", declaration):
            continue
        declaration = re.sub(r"ABSL_\w+(\([^()]*\))?|\[\[\w+\]\]|^template <[^>]*> (requires .*)?", "", declaration)
        found = re.match(r"[^(=]*?(\w+)\s*\(", declaration)
        if found and found.group(1) not in ("decltype", "requires"):
            names.add(found.group(1))
    return names


def public_part(body, keyword):
    body = re.sub(r"\b(?:class|struct) \w+[^;{]*;", ";", flat(body))  # what classes within say of access is theirs
    access = "public" if keyword == "struct" else "private"
    parts = re.split(r"\b(public|protected|private):", body)
    public = parts[0] if access == "public" else ""
    for specifier, part in zip(parts[1::2], parts[2::2], strict=True):
        if specifier == "public":
            public += part
    return public


def public_operations(root):
    operations = set()
    for header, classes in HEADERS.items():
        text = without_comments((root / header).read_text())
        for name in classes:
            found = re.search(rf"\b(class|struct)( ABSL_\w+| \[\[\w+\]\])* {name}( final)?( :[^{{;]*)?\s*{{", text)
            if not found:
                sys.exit(f"{header}: no class {name}")
            body = body_after(text, found.start())
            # Initialisers of constructors would look like calls.
            body = re.sub(r"\)\s*(noexcept )?:\s[^{;]*(?={)", ") ", body)
            operations |= {f"{name}::{method}" for method in names_in(public_part(body, found.group(1)))}
        namespace = body_after(text, text.index("namespace rankloom"))
        namespace = re.sub(r"namespace internal\s*{", "struct internal {", namespace)
        operations |= names_in(namespace)
    return operations


def classes_in(text):
    """The classes and structs that stand in a namespace other than `internal`, with a body."""
    while found := re.search(r"^namespace (\w+::)*internal\s*{", text, flags=re.M):
        text = text[: found.start()] + text[found.end() + len(body_after(text, found.start())) :]
    return set(re.findall(r"^(?:class|struct)(?: ABSL_\w+| \[\[\w+\]\])* (\w+)(?: final)?(?: :[^{;]*)?\s*{", text, flags=re.M))


def unlisted_classes(root):
    """The mistakes in the two lists of classes."""
    listed = {name for names in HEADERS.values() for name in names} | set(CLASSES)
    headers = sorted((root / "include/rankloom").glob("*.h"))
    found = {name: header for header in headers for name in classes_in(without_comments(header.read_text()))}
    within = {name for names in HEADERS.values() for name in names} - set(found)  # classes of classes
    wrong = [f"{found[name].name}: class {name} is neither in HEADERS nor in CLASSES" for name in sorted(set(found) - listed)]
    return wrong + [f"CLASSES: no public class {name}" for name in sorted(set(CLASSES) - set(found))] + [
        f"HEADERS: no public class {name}" for name in sorted(within - {"Event", "OutsideWaker"})
    ]


def drawn_operations(root):
    text = (root / TABLE).read_text()
    table = text[text.index("kRows[] = {") : text.index("rows_are_in_order")]
    names = set()
    for literal in re.findall(r'Kind::k\w+,\s*((?:"[^"]*"\s*)+),', table):
        names |= set("".join(re.findall(r'"([^"]*)"', literal)).split())
    return names | {"PrefixStore::PrefixStore"}


def main():
    root = pathlib.Path(sys.argv[1])
    public, drawn = public_operations(root), drawn_operations(root)
    excepted = {name for name in public if any(re.fullmatch(pattern, name) for pattern in EXCEPTIONS)}
    wrong = [f"{name}: in no small program, and no exception" for name in sorted(public - drawn - excepted)]
    wrong += [f"{name}: no public operation" for name in sorted(drawn - public)]
    wrong += [f"{name}: an exception, but drawn" for name in sorted(drawn & excepted)]
    wrong += [
        f"{pattern}: an exception of nothing" for pattern in EXCEPTIONS if not any(re.fullmatch(pattern, n) for n in public)
    ]
    wrong += unlisted_classes(root)
    # The parser itself: these are of every form that it must know.
    for name in ("ProcessGroup::all_reduce", "ProcessGroup::rank", "Store::wait", "Latch::arrive_and_wait", "wait_any",
                 "Mutex::try_lock", "RankContext::rng", "World::spawn_helper", "Event::query", "init_process_group"):
        if name not in public:
            wrong.append(f"{name}: not found in the headers")
    print(f"{len(public)} public operations, {len(drawn)} of them drawn, {len(excepted)} exceptions")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
