#!/usr/bin/env python3
"""Runs write_traces and reads what it wrote, without any of our code: JSON by Python, protobuf by a decoder of 30 lines.

    read_traces.py WRITE_TRACES [--chakra]
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

# The calls of write_traces.cc, worked out by hand. Virtual microseconds at 1 us a message and 1 ns a byte:
#   forward 0-10; all_gather (1 step, 64 / 2 bytes) 10-11.032; all_reduce (2 steps, 4000 bytes) 10-16;
#   backward 11.032-16.032; send or recv (24 bytes) 16.032-17.056; broadcast (1 step, 8 bytes) 17.056-18.064;
#   barrier (2 steps) -20.064; all_to_all_single (3 steps, 8 * 3 / 4 bytes) -23.070
FAKE = [("forward \"1\"", 0, 10), ("all_gather_into_tensor", 10, 1.032), ("all_reduce", 10, 6), ("backward", 11.032, 5),
        ("p2p", 16.032, 1.024), ("broadcast", 17.056, 1.008), ("barrier", 18.064, 2), ("all_to_all_single", 20.064, 3.006)]
# Ids that each of these eight nodes waits for. The first call of a group has none before it on that group; messages go beside
# collectives.
FAKE_DEPENDENCIES = [[], [1], [1], [2], [3, 4], [3, 5], [5, 6], [7]]
RANKS = {"fake": 4, "real": 2}


def check(condition, *what):
    if not condition:
        raise SystemExit(f"read_traces: {' '.join(str(w) for w in what)}")


def same(have, want, *what):
    check(have == want, *what, "is", have, "want", want)


# ---- Perfetto

def read_perfetto(path, ranks):
    trace = json.loads(path.read_text())
    events = trace["traceEvents"]
    same({e["pid"] for e in events}, set(range(ranks)), path, "processes")
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    same(names, {r: f"rank {r}" for r in range(ranks)}, path, "process names")
    slices = [e for e in events if e["ph"] == "X"]
    for event in slices:
        check((event["pid"], event["tid"]) in lanes, path, "no lane for", event)
        check(event["dur"] >= 0 and event["ts"] >= 0, path, "times of", event)
        if event["cat"] == "compute":
            continue
        arguments = event["args"]
        for key in ("Collective name", "dtype", "Process Group Name", "Process Group Description", "Process Group Ranks"):
            check(isinstance(arguments[key], str) and arguments[key], path, key, arguments)
        for key in ("In msg nelems", "Out msg nelems", "Global rank start", "Global rank stride", "Group size", "Rank", "Seq"):
            check(isinstance(arguments[key], int), path, key, arguments)
        same(arguments["Rank"], event["pid"], path, "rank")
        same(len(json.loads(arguments["Process Group Ranks"])), arguments["Group size"], path, "ranks")
    # Arrows: every one begins and ends, at a slice, between two ranks.
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    same(set(starts), set(ends), path, "arrows")
    at = {(e["pid"], e["tid"], e["ts"]) for e in slices}
    for arrow, start in starts.items():
        end = ends[arrow]
        check(start["pid"] != end["pid"], path, "an arrow within a rank")
        check(start["ts"] <= end["ts"], path, "an arrow back in time")
        for bound in (start, end):
            check((bound["pid"], bound["tid"], bound["ts"]) in at, path, "an arrow from nowhere", bound)
    return slices, lanes, len(starts)


def check_fake_perfetto(folder):
    slices, lanes, arrows = read_perfetto(folder / "fake.json", 4)
    for rank in range(4):
        mine = [(e["name"], e["ts"], e["dur"]) for e in slices if e["pid"] == rank]
        p2p = "send" if rank % 2 == 0 else "recv"
        same(mine, [(p2p if n == "p2p" else n, t, d) for n, t, d in FAKE], "fake rank", rank)
    same(lanes[(3, 1)], "group 0", "lane")
    same(sorted(n for (p, _), n in lanes.items() if p == 3), ["compute", "group 0", "group dp", "group tp"], "lanes")
    # Groups of two: all_gather, all_reduce, broadcast, barrier once in each of 2 groups, send to recv in 2; base of four: 3.
    same(arrows, 2 * 5 + 3, "arrows")
    gather = next(e for e in slices if e["name"] == "all_gather_into_tensor" and e["pid"] == 3)["args"]
    same((gather["dtype"], gather["In msg nelems"], gather["Out msg nelems"], gather["Global rank start"],
          gather["Global rank stride"], gather["Process Group Ranks"], gather["Collective name"]),
         ("BFloat16", 16, 32, 2, 1, "[2, 3]", "_allgather_base"), "all_gather")
    reduce = next(e for e in slices if e["name"] == "all_reduce" and e["pid"] == 3)["args"]
    same((reduce["Global rank start"], reduce["Global rank stride"], reduce["Ring bytes"], reduce["Tree bytes"]),
         (1, 2, 4000, 8000), "all_reduce")
    send = next(e for e in slices if e["name"] == "send" and e["pid"] == 2)["args"]
    same((send["Src Rank"], send["Dst Rank"]), (2, 3), "send")
    recv = next(e for e in slices if e["name"] == "recv" and e["pid"] == 3)["args"]
    same((recv["Src Rank"], recv["Dst Rank"]), (2, 3), "recv")
    # The second member of dp, whose ranks are two apart.
    roots = [e["args"]["Root rank"] for e in sorted(slices, key=lambda e: e["pid"]) if e["name"] == "broadcast"]
    same(roots, [2, 3, 2, 3], "roots")
    splits = next(e for e in slices if e["name"] == "all_to_all_single")["args"]
    same((splits["In split size"], splits["Out split size"]), ("[1, 1, 1, 1]", "[3, 1, 1, 1]"), "splits")
    check(splits["Call site"].startswith("write_traces.cc:"), splits)


def check_real_perfetto(folder):
    slices, _, arrows = read_perfetto(folder / "real.json", 2)
    for rank, middle in ((0, "send"), (1, "recv")):
        same([e["name"] for e in slices if e["pid"] == rank], ["all_reduce", middle, "broadcast"], "real rank", rank)
    same(arrows, 3, "real arrows")
    # The ranks slept 20 us of virtual time in between.
    for rank in (0, 1):
        mine = [e for e in slices if e["pid"] == rank]
        check(mine[1]["ts"] >= 20, "times", mine)


# ---- PyTorch's execution trace

NODE_KEYS = {"id": int, "name": str, "ctrl_deps": int, "inputs": dict, "outputs": dict, "attrs": list}
ATTRIBUTES = {"rf_id": "uint64", "fw_parent": "uint64", "seq_id": "int64", "scope": "uint64", "tid": "uint64",
              "fw_tid": "uint64", "op_schema": "string", "kernel_backend": "string", "kernel_file": "string",
              "tensor_range": "string"}
COMM_ATTRIBUTES = {"collective_name": "string", "dtype": "string", "in_msg_nelems": "uint64", "out_msg_nelems": "uint64",
                   "in_split_size": "string", "out_split_size": "string", "global_rank_start": "uint64",
                   "global_rank_stride": "uint64", "pg_name": "string", "pg_desc": "string", "pg_size": "uint64"}


def read_pytorch(path):
    trace = json.loads(path.read_text())
    same(trace["schema"], "1.1.1-chakra.0.0.4", path, "schema")
    for key, kind in (("pid", int), ("time", str), ("start_ts", int), ("finish_ts", int), ("nodes", list)):
        check(isinstance(trace[key], kind), path, key)
    nodes = {node["id"]: node for node in trace["nodes"]}
    same(len(nodes), len(trace["nodes"]), path, "ids")
    tensors = set()
    for node in nodes.values():
        same({k: type(v) for k, v in node.items()}, NODE_KEYS, path, "keys of", node["id"])
        check(node["ctrl_deps"] in nodes, path, "parent of", node["id"])
        check(node["ctrl_deps"] < node["id"] or node["id"] == 1, path, "order of", node["id"])
        attributes = {a["name"]: a for a in node["attrs"]}
        want = dict(ATTRIBUTES, **(COMM_ATTRIBUTES if node["name"] == "record_param_comms" else {}))
        for name, kind in want.items():
            same(attributes[name]["type"], kind, path, node["id"], name)
            check(isinstance(attributes[name]["value"], str if kind == "string" else int), path, node["id"], name)
        for side in ("inputs", "outputs"):
            lists = node[side]
            same(set(lists), {"values", "shapes", "types", "strides"}, path, side)
            same(len({len(v) for v in lists.values()}), 1, path, "lengths of", side, node["id"])
            for value, shape, kind, stride in zip(*(lists[k] for k in ("values", "shapes", "types", "strides")), strict=True):
                if not kind.startswith("Tensor("):
                    continue
                identity, storage, offset, numel, itemsize, device = value
                product = 1
                for size, step in zip(reversed(shape), reversed(stride), strict=True):
                    same(step, product, path, "strides of", shape)
                    product *= size
                same((numel, len(stride), offset, device), (product, len(shape), 0, "cpu"), path, "tensor", value)
                check(itemsize in (1, 2, 4, 8, 16) and identity not in tensors and storage not in nodes, path, value)
                tensors.add(identity)
    same((nodes[1]["ctrl_deps"], nodes[1]["name"]), (1, "[pytorch|profiler|execution_trace|process]"), path, "root")
    return trace, nodes


def check_pytorch(folder):
    for world, ranks in RANKS.items():
        for rank in range(ranks):
            path = folder / f"{world}.{rank}.pytorch.json"
            trace, nodes = read_pytorch(path)
            same(trace["pid"], rank, path)
            table = json.loads(nodes[3]["inputs"]["values"][0])
            groups = {g["pg_name"]: g for g in table}
            calls = [n for n in nodes.values() if n["name"] == "record_param_comms"]
            for call in calls:
                values = {a["name"]: a["value"] for a in call["attrs"]}
                same(values["pg_size"], groups[values["pg_name"]]["group_size"], path, "group of", call["id"])
            names = [next(a["value"] for a in n["attrs"] if a["name"] == "collective_name") for n in calls]
            if world == "fake":
                same(names, ["_allgather_base", "allreduce", "recv" if rank % 2 else "send", "broadcast", "barrier",
                             "all_to_allv"], path, "calls")
                same(groups["0"]["ranks"], [], path)
                same([g["pg_desc"] for g in table], ["default_pg", "mesh_dp", "mesh_tp"], path)
                same(table[2]["ranks"], [rank // 2 * 2, rank // 2 * 2 + 1], path, "tp")
                same(table[1]["ranks"], [rank % 2, rank % 2 + 2], path, "dp")
                same((calls[0]["inputs"]["shapes"][0], calls[0]["outputs"]["shapes"], calls[0]["outputs"]["types"]),
                     ([4, 4], [[8, 4]], ["Tensor(c10::BFloat16)"]), path)
                same(trace["finish_ts"], 23, path, "end")
                message, broadcast = ({a["name"]: a["value"] for a in calls[at]["attrs"]} for at in (2, 3))
                same((message["src_rank"], message["dst_rank"]), (rank // 2 * 2, rank // 2 * 2 + 1), path, "message")
                same(broadcast["root_rank"], rank % 2 + 2, path, "root")
                side = calls[2]["outputs" if rank % 2 else "inputs"]
                check("Tensor(long int)" in side["types"], path, "type of the message", side["types"])


# ---- names of any bytes, and long times

def check_hostile(folder, chakra):
    names = ['back\\slash "\\xff\n', "all_reduce", "forever", "and on"]
    starts = [0, 1_234_567.891, 1_234_567.894]
    slices, _, _ = read_perfetto(folder / "hostile.json", 1)
    same([e["name"] for e in slices], names, "hostile names")
    same([e["ts"] for e in slices][:3], starts, "hostile times")
    _, nodes = read_pytorch(folder / "hostile.0.pytorch.json")
    calls = list(nodes.values())[3:]
    same([n["name"] for n in calls], [names[0], "record_param_comms", *names[2:]], "hostile nodes")
    values = [{a["name"]: a["value"] for a in n["attrs"]} for n in calls]
    same([v["start_us"] for v in values][:3], starts, "hostile times")
    same([v["duration_us"] for v in values][:2], [1_234_567.891, 0.003], "hostile durations")
    if chakra:
        _, nodes = read_chakra(folder / "hostile.0.et")
        same([n["name"] for n in nodes], names, "hostile nodes of Chakra")


# ---- Chakra

def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def signed(value):
    return value - (1 << 64) if value >> 63 else value


def fields(data):
    """(number, wire type, value) of each field of a message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire == 1:
            value, at = data[at:at + 8], at + 8
        elif wire == 2:
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        else:
            raise SystemExit(f"read_traces: wire type {wire}")
        yield key >> 3, wire, value


def packed(value):
    at, values = 0, []
    while at < len(value):
        one, at = varint(value, at)
        values.append(signed(one))
    return values


# The field of the value that Chakra's feeder asks each attribute for: int32 7, int64 9, bool 27, string 29. It reads any
# other as 0, without a word.
FEEDER = {"is_cpu_op": 27, "num_ops": 9, "comm_type": 9, "comm_size": 9, "comm_priority": 7, "comm_src": 7, "comm_dst": 7,
          "comm_tag": 7, "pg_name": 29}


def attribute(data):
    name, result = None, None
    for number, wire, value in fields(data):
        if number == 1:
            name = value.decode()
            continue
        same(number, FEEDER.get(name, number), "the field of", name)
        if number in (7, 9):  # int32, int64
            result = signed(value)
        elif number == 10:
            result = [v for _, _, part in fields(value) for v in packed(part)]
        elif number == 27:
            result = bool(value)
        elif number == 29:
            result = value.decode()
        elif number == 3:
            result = struct.unpack("<d", value)[0]
        else:
            raise SystemExit(f"read_traces: attribute field {number}, wire {wire}")
    # proto3 writes members of a oneof even where they are zero.
    check(result is not None, "attribute", name, "has no value")
    return name, result


def node(data):
    result = {"id": 0, "name": "", "type": 0, "start": 0, "duration": 0, "ctrl": [], "data": [], "attr": {}}
    for number, wire, value in fields(data):
        if number in (1, 3, 6, 7):
            result[{1: "id", 3: "type", 6: "start", 7: "duration"}[number]] = value
        elif number == 2:
            result["name"] = value.decode()
        elif number in (4, 5):
            result["ctrl" if number == 4 else "data"] += packed(value) if wire == 2 else [value]
        elif number in (8, 9):
            parts = {n: v.decode() for n, _, v in fields(value)}
            result["inputs" if number == 8 else "outputs"] = (json.loads(parts[2]), json.loads(parts[3]))
        elif number == 10:
            name, one = attribute(value)
            result["attr"][name] = one
        else:
            raise SystemExit(f"read_traces: node field {number}")
    return result


def read_chakra(path):
    data, at, messages = path.read_bytes(), 0, []
    while at < len(data):
        size, at = varint(data, at)
        messages.append(data[at:at + size])
        at += size
    same(at, len(data), path, "length")
    metadata = {"attr": {}}
    for number, _, value in fields(messages[0]):
        if number == 1:
            metadata["version"] = value.decode()
        else:
            same(number, 2, path, "metadata field")
            name, one = attribute(value)
            metadata["attr"][name] = one
    nodes = [node(m) for m in messages[1:]]
    seen = set()
    for one in nodes:
        check(one["id"] not in seen, path, "id twice", one["id"])
        for before in one["data"] + one["ctrl"]:
            check(before in seen, path, "node", one["id"], "depends on", before, "which is not before it")
        seen.add(one["id"])
        if one["type"] in (5, 6, 7):
            check("process_group " + one["attr"]["pg_name"] in metadata["attr"], path, "no group", one)
            same(one["attr"]["is_cpu_op"], False, path)
    return metadata, nodes


COMPUTE, SEND, RECV, COLLECTIVE = 4, 5, 6, 7
ALL_REDUCE, ALL_GATHER, BROADCAST, ALL_TO_ALL, REDUCE_SCATTER, BARRIER = 0, 2, 5, 6, 7, 9


def check_chakra(folder):
    for rank in range(4):
        metadata, nodes = read_chakra(folder / f"fake.{rank}.et")
        same(metadata["version"], "0.0.4", "version")
        same((metadata["attr"]["rank"], metadata["attr"]["world_size"]), (rank, 4), "metadata")
        same(metadata["attr"]["process_group 0"], [0, 1, 2, 3], "base")
        send = rank % 2 == 0
        same([n["type"] for n in nodes], [COMPUTE, COLLECTIVE, COLLECTIVE, COMPUTE, SEND if send else RECV, COLLECTIVE,
                                          COLLECTIVE, COLLECTIVE], "types")
        same([n["data"] for n in nodes], FAKE_DEPENDENCIES, "dependencies of rank", rank)
        same([(n["start"], n["duration"]) for n in nodes], [(int(t), int(d)) for _, t, d in FAKE], "times")
        same([n["attr"].get("comm_type") for n in nodes],
             [None, ALL_GATHER, ALL_REDUCE, None, None, BROADCAST, BARRIER, ALL_TO_ALL], "collectives")
        same([n["attr"].get("comm_size") for n in nodes], [None, 32, 4000, None, 24, 8, 0, 8], "sizes")
        p2p = nodes[4]["attr"]
        first = rank // 2 * 2
        same((p2p["comm_src"], p2p["comm_dst"], p2p["comm_tag"]), (first, first + 1, 7), "send")
        same(metadata["attr"]["process_group " + p2p["pg_name"]], [first, first + 1], "tp")
        same(nodes[5]["attr"]["root"], rank % 2 + 2, "root")
        same(nodes[1]["inputs"], ([[4, 4]], ["Tensor(bfloat16)"]), "inputs")
        same(nodes[1]["outputs"], ([[8, 4]], ["Tensor(bfloat16)"]), "outputs")
    for rank in range(2):
        metadata, nodes = read_chakra(folder / f"real.{rank}.et")
        same([n["type"] for n in nodes], [COLLECTIVE, SEND if rank == 0 else RECV, COLLECTIVE], "real types")
        same([n["data"] for n in nodes], [[], [1], [1, 2]], "real dependencies")
        same(metadata["attr"]["process_group 0"], [0, 1], "real group")
        same(nodes[2]["attr"]["root"], 1, "real root")


def simulated(paths, runs):
    """When each rank ends: a node runs when all that it depends on have ended, a collective when all of its group have come.

    As ASTRA-sim's workload layer does it, with one microsecond and a nanosecond a byte for each call. runs: kinds of collectives.
    """
    ranks = [read_chakra(path) for path in paths]
    ended, calls, arrived, counts = [{} for _ in ranks], {}, {}, {}
    waiting = [list(nodes) for _, nodes in ranks]
    moved = True
    while moved:
        moved = False
        for rank, (metadata, _) in enumerate(ranks):
            for one in [one for one in waiting[rank] if all(before in ended[rank] for before in one["data"])]:
                ready = max((ended[rank][before] for before in one["data"]), default=0)
                if one["type"] == COMPUTE:
                    ended[rank][one["id"]] = ready + one["duration"]
                else:
                    attributes = one["attr"]
                    key, members = message_of(rank, one, metadata["attr"])
                    if (rank, one["id"]) not in arrived:
                        number = counts[rank, key] = counts.get((rank, key), 0) + 1
                        arrived[rank, one["id"]] = (*key, number)
                        calls.setdefault((*key, number), {})[rank] = ready
                        if one["type"] == COLLECTIVE:
                            check(attributes["comm_type"] in runs, "no simulator runs", one)
                        moved = True
                    call = calls[arrived[rank, one["id"]]]
                    if len(call) < members:
                        continue
                    ended[rank][one["id"]] = max(call.values()) + 1 + attributes["comm_size"] / 1000
                waiting[rank].remove(one)
                moved = True
    same([[one["id"] for one in nodes] for nodes in waiting], [[] for _ in ranks], "nodes that wait for ever")
    return [max(times.values()) for times in ended]


def message_of(rank, one, metadata):
    """A name of the call that is the same on all its members, and how many those are."""
    attributes = one["attr"]
    if one["type"] == COLLECTIVE:
        members = metadata["process_group " + attributes["pg_name"]]
        check(rank in members, "rank", rank, "is no member of", one)
        return (attributes["pg_name"], *members), len(members)
    return ("p2p", attributes["comm_src"], attributes["comm_dst"], attributes["comm_tag"]), 2


def check_simulation(folder):
    everything, astra_sim = range(10), (ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER)
    for name, size, runs in (("fake", 4, everything), ("fake.lowered", 4, astra_sim), ("real", 2, everything),
                             ("real.lowered", 2, astra_sim)):
        ends = simulated([folder / f"{name}.{rank}.et" for rank in range(size)], runs)
        same(ends, [ends[0]] * size, name, "ends")
        check(ends[0] > 0, name, "ends at once")
    _, nodes = read_chakra(folder / "fake.lowered.0.et")
    same([n["attr"].get("comm_type") for n in nodes],
         [None, ALL_GATHER, ALL_REDUCE, None, None, ALL_GATHER, ALL_REDUCE, ALL_TO_ALL], "lowered collectives")
    same([n["attr"].get("comm_size") for n in nodes], [None, 32, 4000, None, 24, 4, 2, 8], "lowered sizes")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([pathlib.Path(sys.argv[1]).resolve()], cwd=folder, check=True, timeout=50)
        check_fake_perfetto(folder)
        check_real_perfetto(folder)
        check_pytorch(folder)
        check_hostile(folder, "--chakra" in sys.argv)
        if "--chakra" in sys.argv:
            check_chakra(folder)
            check_simulation(folder)
        same(any(folder.glob("*.et")), "--chakra" in sys.argv, "there being Chakra traces")
    print("read_traces: ok")


if __name__ == "__main__":
    main()
