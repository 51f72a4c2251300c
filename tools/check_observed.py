#!/usr/bin/env python3
"""Checks that an exhaustive search is told of the state that tasks can come to in another order.

    tools/check_observed.py [ROOT]

Runs as the test `observed` and in ./dev lint. Each data member of a class in CLASSES is const, or guarded by an ObservedMutex
(sim/sync/observed_mutex.h), or in UNOBSERVED with a reason. A file of the library that has a lock of its own is in CLASSES, or in
UNSEEN_LOCKS with a reason. Prints `path:line: what is wrong` and exits with 1 if anything is.
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
from check_layers import NOT_CODE, blank, line_of  # noqa: E402

# File -> its classes, inner ones by their own name.
CLASSES = {
    "include/rankloom/sync.h": ["Mutex", "CondVar", "WatchedCell", "Watched", "Latch"],
    "sim/sync/sync.cc": ["MutexState", "CondVarState", "Waiter", "WatchedState", "LatchState"],
    "fake_store/key_table.h": ["KeyTable"],
    "fake_store/table_store.h": ["TableStore"],
    "include/rankloom/group.h": ["Group"],
    "world/world_state.h": ["WorldState"],
    "collectives/work/work_state.h": ["WorkState"],
    "collectives/work/work.cc": ["State"],
    "collectives/work/coalesced_work.h": ["CoalescedWork"],
    "collectives/work/stream_work.h": ["StreamWork"],
    "collectives/threaded/rendezvous.h": ["Rendezvous", "Slot", "CollectiveWork"],
    "collectives/threaded/mailbox.h": ["Mailbox", "Message"],
    "collectives/threaded/mailbox.cc": ["Inbox", "Channel", "Queue"],
    "collectives/threaded/threaded_process_group.h": ["ThreadedGroupCore"],
    "collectives/streams/sim_stream.cc": ["SimEvent", "Queue"],
}

RANKS_OWN = "memory of one rank, to which each of its steps writes"
BEFORE_THE_RUN = "const once the object is known to others"
SPARES_A_LOOK = "a hint: the guarded state is read before anything depends on it"
BY_MUTEX = "guarded by the mutex of its owner, which is one"
# (class, member) -> why the search need not know. "*": all members.
UNOBSERVED = {
    ("Waiter", "*"): BY_MUTEX,
    ("Watched", "value_"): "reached by a WatchedAccess only, which tells",
    ("KeyTable", "ever_watched_"): SPARES_A_LOOK,
    ("TableStore", "table_"): "a class of this list",
    ("TableStore", "poller_"): "of stores of several processes, which no search sees",
    ("Group", "object_"): BEFORE_THE_RUN,
    ("Group", "of_world_"): BEFORE_THE_RUN,
    ("Group", "any_left_"): "says only that a record must hold its group",
    ("WorldState", "after_"): "set when all has ended",
    ("WorldState", "poison_"): BEFORE_THE_RUN,
    ("WorldState", "late_completion_"): BEFORE_THE_RUN,
    ("WorldState", "blocked_streams_"): "a search vouches for nothing that a device does",
    ("WorldState", "uses_device_"): "a search vouches for nothing that a device does",
    ("WorldState", "rooted_each_"): "the same in all runs of a search, whoever asks first",
    ("WorldState", "scheduler_"): BEFORE_THE_RUN,
    ("WorldState", "faults_"): BEFORE_THE_RUN,
    ("WorldState", "store_"): BEFORE_THE_RUN,
    ("WorldState", "keys_"): BEFORE_THE_RUN,
    ("WorldState", "group_backend_"): BEFORE_THE_RUN,
    ("WorldState", "world_group_"): BEFORE_THE_RUN,
    ("WorldState", "contexts_"): BEFORE_THE_RUN,
    ("WorldState", "start_ns_"): BEFORE_THE_RUN,
    ("WorldState", "object_"): BEFORE_THE_RUN,
    ("WorldState", "listeners_mu_"): "of listeners_",
    ("WorldState", "listeners_"): "asked at an abort only, which ends the explored part of a run",
    ("WorldState", "listener_ids_"): "of listeners_",
    ("WorldState", "own_listener_ids_"): "of listeners_",
    ("WorkState", "holds_owners_"): BEFORE_THE_RUN,
    ("WorkState", "is_part_"): BEFORE_THE_RUN,
    ("WorkState", "object_"): BEFORE_THE_RUN,
    ("WorkState", "own_record_"): BEFORE_THE_RUN,
    ("WorkState", "handles_"): "a count of references; who lets the last go looks at done_ and tells",
    ("WorkState", "done_"): "read by is_completed(), which tells, and is_over(), whose callers tell; written under mu_",
    ("State", "kept"): "between is_completed() and complete(), which tell, there is no scheduling point",
    ("State", "tensors"): "written before complete(), read after it",
    ("CoalescedWork", "collectives_"): BEFORE_THE_RUN,
    ("CoalescedWork", "messages_"): BEFORE_THE_RUN,
    ("CoalescedWork", "left_"): "a count of parts, each of which tells of its end",
    ("Rendezvous", "spreading_"): "read by threads that run freely only",
    ("Rendezvous", "completing_"): "waited for in real time, beside the explored steps",
    ("Rendezvous", "any_unwound_"): SPARES_A_LOOK,
    ("Slot", "*"): BY_MUTEX,
    ("CollectiveWork", "*"): "its rank's until the call is filed, then the slot's",
    ("ThreadedGroupCore", "on_abort_"): BEFORE_THE_RUN,
    ("ThreadedGroupCore", "at_end_"): BEFORE_THE_RUN,
    ("Mailbox", "failed_"): "written under mu_; who reads it tells, or posts, which commutes with all but fail()",
    ("Mailbox", "any_unwound_"): SPARES_A_LOOK,
    ("Message", "*"): "its rank's until the message is posted, then guarded by the mutex of the inbox, which is one",
    ("Channel", "*"): BY_MUTEX,
    ("Inbox", "unfinished_of_owner"): "counts what its rank has on the way, for that rank's shutdown(), which tells",
    ("WorkState", "open_in_"): RANKS_OWN,
    ("WorkState", "open_call_"): BEFORE_THE_RUN,
    ("StreamWork", "inner_"): BEFORE_THE_RUN,
    ("Queue", "*"): "of an inbox: " + BY_MUTEX + "; of a stream: " + RANKS_OWN,
}

# Files with locks of state that no search looks after -> why it need not.
UNSEEN_LOCKS = {
    "sim/faults/fault_injector.h": "counts the calls of each rank, in the steps of that rank; a fault that may happen is a choice",
    "sim/faults/fault_injector.cc": "a hang: nobody else knows the lock",
    "world/open_outputs.h": RANKS_OWN + ", and so does another one that learns of its calls",
    "world/operation_log.h": "read once the run has ended",
    "world/flight_recorder.h": "whoever reads records in an explored run makes the search unsure",
    "collectives/ops/group_request.cc": "an ObservedMutex of the groups on their way, in a local class",
}
LIBRARY = ["sim", "fake_store", "world", "collectives", "include/rankloom"]
LOCK = re.compile(r"\b(?:RankMutex|ObservedMutex)\s+\w+\s*(?:;|{|\(|ABSL_)")


def unlisted_locks(root, classes=None, unseen=None):
    """Locks of files that no list names, and names that no file needs."""
    classes = CLASSES if classes is None else classes
    unseen = UNSEEN_LOCKS if unseen is None else unseen
    needed = set()
    for folder in LIBRARY:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in (".h", ".cc"):
                continue
            path, text = file.relative_to(root).as_posix(), NOT_CODE.sub(blank, file.read_text())
            for match in LOCK.finditer(text):
                if path in unseen:
                    needed.add(path)
                elif path not in classes:
                    yield (f"{path}:{line_of(text, match.start())}: a lock of state that no exhaustive search is told of: "
                           "its class wants a line in CLASSES of tools/check_observed.py, or the file a reason in UNSEEN_LOCKS")
    yield from (f"tools/check_observed.py:1: UNSEEN_LOCKS: {path} has no lock" for path in unseen if path not in needed)


def members(body):
    """(name, whether const, guard or "", offset) of the data members of a class body without comments and strings."""
    flat = list(body)
    depth = 0
    for i, char in enumerate(body):  # inner bodies and initializers
        if char == "{":
            depth += 1
        if depth > 0 and char != "\n":
            flat[i] = " "
        if char == "}":
            depth -= 1
            if depth == 0 and re.match(r"\s*(?!;|,)\S", body[i + 1:]):
                flat[i] = ";"  # the end of a function
    text = "".join(flat)
    text = re.sub(r"\b(public|private|protected):", lambda m: ";" + " " * (len(m.group(0)) - 1), text)
    offset = 0
    for statement in text.split(";"):
        start, offset = offset, offset + len(statement) + 1
        guard = re.search(r"ABSL_(?:PT_)?GUARDED_BY\(([\w.]+)\)", statement)
        code = re.sub(r"ABSL_\w+(\([^()]*\))?", "", statement)
        before = None
        while before != code:  # template arguments, inner ones first
            before, code = code, re.sub(r"<[^<>]*>", "", code)
        code = code.split("=")[0].strip()
        if re.match(r"(using|friend|enum|struct|class|static|template|typedef|inline|explicit|virtual)\b", code) or "(" in code:
            continue
        found = re.match(r"(?:mutable\s+)?([\w:\s*&]+?[\s*&])(\w+)\s*(\[[^\]]*\]\s*)*$", code)
        if found is None:
            continue
        type_name, name = found.group(1).strip(), found.group(2)
        is_const = bool(re.match(r"const\b[^*]*$", type_name) or re.search(r"\*\s*const$", type_name) or type_name.endswith("&"))
        at = start + len(statement) - len(statement.lstrip())
        yield name, type_name, is_const, guard.group(1) if guard else "", at


def class_bodies(text, name):
    """(offset, body) of each class or struct of this name, where it is defined."""
    for match in re.finditer(r"\b(?:class|struct)\s+(?:ABSL_\w+(?:\([^()]*\))?\s+)*(?:\w+::)*" + name + r"\b(?!\s*[;>*&])[^;{]*{", text):
        depth, at = 1, match.end()
        while depth > 0 and at < len(text):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        yield match.end(), text[match.end():at - 1]


def check(root, classes=None, unobserved=None):
    classes = CLASSES if classes is None else classes
    unobserved = UNOBSERVED if unobserved is None else unobserved
    problems, used = [], set()
    for path, names in classes.items():
        text = NOT_CODE.sub(blank, (root / path).read_text())
        for name in names:
            bodies = list(class_bodies(text, name))
            if not bodies:
                problems.append(f"{path}:1: no class {name}: tools/check_observed.py lists it")
            for offset, body in bodies:
                found = list(members(body))
                observed = {member for member, type_name, *_ in found if type_name == "ObservedMutex"}
                for member, _, is_const, guard, at in found:
                    if is_const or member in observed or guard in observed:
                        continue
                    reason = (name, "*") if (name, "*") in unobserved else (name, member)
                    if reason in unobserved:
                        used.add(reason)
                        continue
                    problems.append(f"{path}:{line_of(text, offset + at)}: {name}::{member} is state that no exhaustive search is told of, "
                                    "want ABSL_GUARDED_BY an ObservedMutex, or a reason in tools/check_observed.py")
    problems += [f"tools/check_observed.py:1: {name}::{member} needs no reason" for name, member in unobserved
                 if (name, member) not in used]
    return problems


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    problems = [*check(root), *unlisted_locks(root)]
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
