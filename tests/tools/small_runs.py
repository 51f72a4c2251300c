"""Small run files that no program of the tests leaves: as the library writes them, line by line."""

import json

# A file of this checkout, so that pages have its lines.
SITE = "tests/collectives/records/write_runs.cc"


def run_file(run, states, *lines):
    """The bytes of a run file. run: what differs from a run of these states that went well."""
    size = len(states)
    first = {"t": "run", "world_size": size, "ok": True, "text": "ok", "kind": "", "cause": "", "first_failed": -1, "engine": "fibers"}
    first |= {"schedule": "seeded:1", "rerun": "RANKLOOM_SEED=1 ./train", "steps": 24, "choices": 7, "end_ns": 0, "failures": []} | run
    group = {"id": 0, "name": "0", "description": "default_pg", "size": size, "first": 0, "stride": 1}
    outcomes = {"t": "outcomes", "states": states, "texts": []}
    every = [{"rlrun": 1, "writer": "rankloom 0.1.0"}, first, outcomes, {"t": "groups", "groups": [group]}, *lines, {"t": "gaps", "gaps": []}]
    every.append({"t": "end", "lines": len(every) + 1})
    return b"".join(json.dumps(line).encode() + b"\n" for line in every)


def kind(op, line, size, **more):
    """A kind of call with one tensor of `size` elements of int32."""
    return {"op": op, "group": 0, "file": SITE, "line": line, "dtype": 7, "in": [[size]], "out": [[size]]} | more


def calls(rank, *made):
    """Of each call its kind, number, steps at which it was issued and had ended, and state."""
    steps = [begun - before for (_, _, begun, _, _), before in zip(made, [0, *(call[2] for call in made)], strict=False)]
    line = {"t": "calls", "rank": rank, "made": len(made), "kind": [call[0] for call in made], "seq": [call[1] for call in made]}
    line |= {"issued": [0] * len(made), "arrived": [0] * len(made), "ended": [0] * len(made), "state": "".join(call[4] for call in made)}
    return line | {"step": steps, "done": [ended - begun for _, _, begun, ended, _ in made]}


def store(rank, *ops, made=None):
    """Of each operation its name, line of code, step, state and the rest."""
    told = [
        {"op": f"store {op}", "file": SITE, "line": line, "state": state, "begun": 0, "ended": 0, "step": step, "done": 0} | more
        for op, line, step, state, more in ops
    ]
    return {"t": "store", "rank": rank, "made": made or len(ops), "ops": told}


def value(name, text):
    return {name: text, f"{name}_bytes": len(text)}


def saved():
    """A root that goes on before the others have come, and an assertion of it that fails: found by a search."""
    story = (
        "   step  rank 0                       rank 1\n      4  store num_keys [write_runs.cc:40]\n"
        "      6                               store set part 1 [write_runs.cc:36]\n"
        "     10                               broadcast seq 1 [group 0, write_runs.cc:38]\n"
    )
    explored = {"t": "story", "strategy": "exhaustive", "story": story, "run": 2, "found": "", "found_switches": 1, "shrink_runs": 9, "switches": []}
    explored |= {"found_story": story, "found_story_switches": [], "sampled": False}
    explored |= {"shares": [{"strategy": "exhaustive", "runs": 2, "schedules": 2, "open": 1, "finished": False}]}
    explored["choices"] = [
        "rank -1 at start, 2 ready, task 0 chosen",
        "rank 0 at broadcast seq 1, 2 alternatives, number 1 chosen",
        "rank 0 at store num_keys, 2 ready, task 0 chosen",
        "rank 1 at broadcast seq 1, 2 ready, task 0 chosen",
        "rank 1 at broadcast seq 1, 2 ready, task 3 chosen",
    ]
    explored |= {"futures": [40, 20, 6, 2, 2, 1], "lost": [6, 4, 3, 2, 2, 1]}
    message = f"{SITE}:40: rank 0: Expected equality of these values:\n  rank.store().num_keys()\n    Which is: 1\n  rank.world_size()\n"
    message += "    Which is: 2"
    return run_file(
        {"schedule": "steered:1:0#0=1", "steps": 8, "failures": [message]},
        "rr",
        explored,
        {"t": "kinds", "kinds": [kind("broadcast", 38, 1, root=0, **{"in": []})]},
        calls(0, (0, 1, 2, 2, "c")),
        store(0, ("set", 36, 1, "c", {"key": "part 0", **value("given", "weights")}), ("num_keys", 40, 4, "c", value("got", "1"))),
        calls(1, (0, 1, 6, 8, "c")),
        store(1, ("set", 36, 5, "c", {"key": "part 1", **value("given", "weights")})),
    )


def deleted(deletes=True, made=None):
    """A rank that waits for a key which another has deleted, or nobody set. made: operations of rank 0, if some are not in the file."""
    cause = (
        "no rank can move\n  ranks 0, 2-3 wait in barrier seq 2 for rank 1 [group 0, write_runs.cc:43]\n"
        '  rank 1 waits in store get key "round/0" [write_runs.cc:47]'
    )
    of_0 = [
        ("set", 36, 5, "c", {"key": "round/0", **value("given", "batch 0")}),
        ("delete_key", 45, 18, "c", {"key": "round/0", **value("got", "true")}),
    ]
    waits = [
        {"ranks": [[0, 0], [2, 3]], "for": [[1, 1]], "task": "rank", "what": "barrier", "group": "0", "seq": 2, "detail": "", "remark": ""},
        {"ranks": [[1, 1]], "for": [], "task": "rank", "what": "store get", "group": "", "seq": -1, "detail": 'key "round/0"', "remark": ""},
    ]
    found = [store(rank, ("get", 47, 8 + rank, "c", {"key": "round/0", **value("got", "batch 0")})) for rank in (2, 3)] if deletes else []
    return run_file(
        {"ok": False, "kind": "Deadlock", "text": f"Deadlock: {cause}", "cause": cause},
        "ssss",
        {"t": "waits", "waits": [{**waits[0], "file": SITE, "line": 43}, {**waits[1], "file": SITE, "line": 47}], "cycle": []},
        {"t": "kinds", "kinds": [kind("reduce", 38, 1, root=1), kind("barrier", 43, 1, **{"in": [], "out": []})]},
        *[calls(rank, (0, 1, 6 + rank, 10, "c"), (1, 2, 20, 24, "f")) for rank in (0, 2, 3)],
        calls(1, (0, 1, 7, 10, "c")),
        store(0, *(of_0 if deletes else [("set", 36, 5, "c", {"key": "round/1", **value("given", "batch 0")})]), made=made),
        store(1, ("get", 47, 23, "f", {"key": "round/0"})),
        *found,
    )


def kept():
    """The run of deleted() in which rank 1 finds the key in time."""
    return run_file(
        {},
        "rrrr",
        {"t": "kinds", "kinds": [kind("reduce", 38, 1, root=1), kind("barrier", 43, 1, **{"in": [], "out": []})]},
        *[calls(rank, (0, 1, 6 + rank, 10, "c"), (1, 2, 20, 24, "c")) for rank in range(4)],
        store(
            0,
            ("set", 36, 5, "c", {"key": "round/0", **value("given", "batch 0")}),
            ("delete_key", 45, 18, "c", {"key": "round/0", **value("got", "true")}),
        ),
        *[store(rank, ("get", 47, 8 + rank, "c", {"key": "round/0", **value("got", "batch 0")})) for rank in (1, 2, 3)],
    )


def read_early():
    """Two ranks with two calls open at once, and a third behind them. Every schedule of the search fails."""
    story = "   step  rank 0                                  rank 1\n     14  all_reduce seq 2 [group 0, write_runs.cc:30]\n"
    explored = {"t": "story", "strategy": "default order", "story": story, "run": 1, "found": "steered:1", "found_switches": 0}
    explored |= {"shrink_runs": 5, "switches": [], "shares": [], "sampled": False, "futures": [2, 1], "lost": [2, 1]}
    explored |= {"choices": ["rank -1 at start, 2 ready, task 0 chosen"]}
    text = "rank 0 failed: mean is nan (std::runtime_error), after all_gather_into_tensor seq 2 (completed) [group 0, write_runs.cc:37]"
    return run_file(
        {"ok": False, "kind": "RankFailed", "text": text, "cause": text, "first_failed": 0, "schedule": "steered:1"},
        "fr",
        explored,
        {"t": "kinds", "kinds": [kind("all_reduce", 36, 1), kind("all_gather_into_tensor", 37, 1), kind("barrier", 39, 1, **{"in": [], "out": []})]},
        calls(0, (0, 1, 1, 8, "c"), (1, 2, 2, 12, "c"), (2, 3, 14, 16, "c")),
        calls(1, (0, 1, 5, 8, "c"), (1, 2, 6, 12, "c"), (2, 3, 15, 16, "c")),
    )
