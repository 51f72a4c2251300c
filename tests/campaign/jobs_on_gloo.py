#!/usr/bin/env python3
"""Random jobs on gloo, a process a rank: each rank must see what the oracle of tests/campaign says.

    build/tests/campaign/write_jobs --jobs 300 > jobs.jsonl
    .venv-torch/bin/python tests/campaign/jobs_on_gloo.py jobs.jsonl

Calls that gloo cannot make are left out on all members, and counted: each kind of call of all ranks is tried once before
the jobs, and gloo's reasons are printed; kinds that only smaller groups have are left out, too. Values are small integers,
whose arithmetic is exact in every dtype; averages alone may differ, and are counted, as are true bools of another byte than
1. Ends with 1 if a rank sees anything else, or a job does not end.
"""

import collections
import datetime
import json
import re
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from compare_with_torch import DTYPES, OPS, differ

ALL_DTYPES = DTYPES | {name: getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2")}
PATIENCE = datetime.timedelta(seconds=60)
PROBE_PATIENCE = datetime.timedelta(seconds=20)


def tensor(text, dtype):
    """A tensor of these bytes, in hexadecimal digits."""
    if not text:
        return torch.empty(0, dtype=ALL_DTYPES[dtype])
    return torch.frombuffer(bytearray.fromhex(text), dtype=ALL_DTYPES[dtype]).clone()


def digits(tensors):
    return "".join(bytes(one.contiguous().view(torch.uint8).tolist()).hex() for one in tensors)


def kind_of(act):
    """Calls of one kind are all made by gloo, or none: call, dtype, reduction, and what is special; each may be empty."""
    size = len(act["members"])
    if act["kind"] in ("barrier", "monitored_barrier"):
        return (act["kind"], "", "", "")
    empty = not any(text for own in act["inputs"] for text in own)
    if act["kind"] != "collective":
        to_oneself = size == 1 or act["from"] == act["to"] if act["kind"] == "message" else size == 1 or act.get("by") == 0
        return (act["kind"], act["dtype"], "", "to oneself" if to_oneself else "empty" if empty else "")
    op = act["op"]
    reduction = act["reduce"] if op.startswith(("all_reduce", "reduce")) else ""
    uneven = act["uneven"] > 0 and size > 1 and op not in ("all_reduce", "broadcast", "reduce")
    return (op, act["dtype"], reduction, "uneven" if uneven else "empty" if empty else "")


class Pending:
    """A call that the rank has made: its works, and the tensors to look at once they are done."""

    def __init__(self, works, outputs):
        self.works = [work for work in works if work is not None]
        self.outputs = outputs

    def see(self):
        for work in self.works:
            work.wait()
        return self.outputs() if callable(self.outputs) else digits(self.outputs)


class Rank:
    """Makes a job's acts as one rank."""

    def __init__(self, rank, groups):
        self.rank = rank
        self.groups = groups  # by the act that made them

    def collective(self, act, member, group):
        members, dtype, op = act["members"], act["dtype"], act["op"]
        inputs = [tensor(text, dtype) for text in act["inputs"][member]]
        outputs = [torch.empty(numel, dtype=ALL_DTYPES[dtype]) for numel in act["outputs"][member]]
        root = members[act["root"]]
        is_root = self.rank == root
        reduce = OPS.get(act["reduce"]) or dist._make_nccl_premul_sum(0.5)
        later = {"group": group, "async_op": True}
        if op == "barrier":
            return Pending([dist.barrier(**later)], [])
        if op in ("broadcast", "all_reduce", "reduce"):
            same = inputs[0] if inputs else outputs[0]
            if op == "broadcast":
                return Pending([dist.broadcast(same, root, **later)], [same])
            if op == "all_reduce":
                return Pending([dist.all_reduce(same, reduce, **later)], [same])
            return Pending([dist.reduce(same, root, reduce, **later)], [same] if is_root else lambda: None)
        if op == "all_gather":
            work = dist.all_gather(outputs, inputs[0], **later)
        elif op == "all_gather_into_tensor":
            work = dist.all_gather_into_tensor(outputs[0], inputs[0], **later)
        elif op == "gather":
            work = dist.gather(inputs[0], outputs if is_root else None, root, **later)
        elif op == "scatter":
            work = dist.scatter(outputs[0], inputs if is_root else None, root, **later)
        elif op == "reduce_scatter":
            work = dist.reduce_scatter(outputs[0], inputs, reduce, **later)
        elif op == "reduce_scatter_tensor":
            work = dist.reduce_scatter_tensor(outputs[0], inputs[0], reduce, **later)
        elif op == "all_to_all":
            work = dist.all_to_all(outputs, inputs, **later)
        else:
            rows = [[act["splits"][j][member] for j in range(len(members))], act["splits"][member]]
            shaped = [one.view(-1, act["rows"]) for one in (outputs[0], inputs[0])]
            work = dist.all_to_all_single(*shaped, *rows, **later)
        return Pending([work], outputs)

    def messages(self, act, member, group):
        """Sends and receives of this rank; None if it has none."""
        members, kind, tag = act["members"], act["kind"], act["id"]
        size = len(members)
        dtype = act["dtype"]

        def like(source):
            return torch.empty_like(tensor(act["inputs"][source][0], dtype))

        if kind == "message":
            if member == act["from"]:
                mine = tensor(act["inputs"][member][0], dtype)
                return Pending([dist.isend(mine, members[act["to"]], group, tag)], lambda: "")
            if member == act["to"]:
                mine = like(act["from"])
                return Pending([dist.irecv(mine, members[act["from"]], group, tag)], [mine])
            return None
        if kind == "ring":
            source = (member + size - act["by"]) % size
            mine, other = tensor(act["inputs"][member][0], dtype), like(source)
            works = [
                dist.irecv(other, members[source], group, tag),
                dist.isend(mine, members[(member + act["by"]) % size], group, tag),
            ]
            return Pending(works, lambda: digits([other]))
        if member != act["to"]:
            mine = tensor(act["inputs"][member][0], dtype)
            return Pending([dist.isend(mine, members[act["to"]], group, tag)], lambda: "")
        # From anyone: in the order in which messages come, told in that of ranks.
        found = {}
        for _ in range(size - 1):
            mine = like(next(other for other in range(size) if other != member))
            found[members.index(dist.recv(mine, None, group, tag))] = mine
        return Pending([], lambda: "".join(f"{other}:".encode().hex() + digits([found[other]]) for other in sorted(found)))

    def make(self, act):
        if self.rank not in act["members"]:
            return None
        member = act["members"].index(self.rank)
        group = self.groups[act["group"]]
        if act["kind"] == "monitored_barrier":
            dist.monitored_barrier(group, PATIENCE)
            return None
        if act["kind"] == "collective":
            return self.collective(act, member, group)
        return self.messages(act, member, group)

    def run(self, job, refused, found):
        """Counts in `found`; yields what differs from the oracle."""
        pending = {}

        def finish(act):
            want = act["saw"][act["members"].index(self.rank)]
            have = pending.pop(act["id"]).see()
            found["sights"] += 1
            if have is None or have == want:
                return None
            if act["dtype"] == "bool" and tensor(have, "uint8").bool().tolist() == tensor(want, "uint8").bool().tolist():
                found["bools of other bytes than 0 and 1"] += 1
                return None
            if act.get("reduce") == "avg" and differ(tensor(have, act["dtype"]), tensor(want, act["dtype"])) > 0:
                found["averages that differ"] += 1
                return None
            return f"seed {job['seed']}, rank {self.rank}: {act}: have {have}, want {want}"

        by_id = {act["id"]: act for act in job["acts"] if "id" in act}
        for act in job["acts"]:
            if act["kind"] == "new_group":
                self.groups[act["id"]] = dist.new_group(act["members"], timeout=PATIENCE)
            elif act["kind"] == "wait":
                if act["rank"] == self.rank and act["act"] in pending:
                    yield finish(by_id[act["act"]])
            elif kind_of(act) in refused:
                found["calls left out"] += self.rank == act["members"][0]
            else:
                call = self.make(act)
                found["calls"] += call is not None
                if call is not None:
                    pending[act["id"]] = call
                    if act["at_once"]:
                        yield finish(act)
        for act in sorted(pending):
            yield finish(by_id[act])


def group_of(rank, path, ranks):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks, timeout=PATIENCE)


def probe(rank, path, acts, reasons):
    """Finds out which kinds of call gloo refuses. A refusal by one member leaves the others waiting: a new group follows."""
    group_of(rank, path, len(acts[0]["members"]))
    group = dist.new_group(timeout=PROBE_PATIENCE)
    for act in acts:
        failed = torch.zeros(1)
        try:
            call = Rank(rank, {0: group}).make(act | {"group": 0})
            if call is not None:
                call.see()
        except Exception as error:  # of any kind: what gloo cannot do is a result
            failed += 1
            reasons[rank, kind_of(act)] = str(error).split("\n")[0]
        dist.all_reduce(failed)
        if failed > 0:
            dist.destroy_process_group(group)
            group = dist.new_group(timeout=PROBE_PATIENCE)
    dist.destroy_process_group()


def run(rank, path, jobs, refused, results):
    group_of(rank, path, jobs[0]["ranks"])
    found = collections.Counter()
    wrong = []
    job = None
    try:
        for job in jobs:
            one = Rank(rank, {0: None})
            wrong += [text for text in one.run(job, refused, found) if text is not None]
            dist.barrier()
            for group in list(one.groups.values())[1:]:
                if group is not dist.GroupMember.NON_GROUP_MEMBER:
                    dist.destroy_process_group(group)
    except Exception:  # of any kind: is a result, too
        wrong.append(f"seed {job['seed']}, rank {rank}: {traceback.format_exc()}")
    results[rank] = (dict(found), wrong)


def print_refusals(reasons):
    """A line for each call and reason, with the dtypes of which that is so."""
    dtypes = collections.defaultdict(set)
    for (op, dtype, reduction, how), reason in reasons.items():
        short = re.sub(r"\(.*|\[.*?\] ?|\d+ms.*| at index.*", "", reason).strip()[:70]
        dtypes[" ".join(part for part in (op, reduction, how) if part), short].add(dtype)
    for (call, reason), of in sorted(dtypes.items()):
        print(f"gloo has not: {call}: {', '.join(sorted(of))}: {reason}")


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        jobs = [json.loads(line) for line in file]
    sizes = sorted({job["ranks"] for job in jobs})
    found, wrong, reasons = collections.Counter(), [], {}
    with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
        for ranks in sizes:
            own = [job for job in jobs if job["ranks"] == ranks]
            kinds = {}
            for job in own:
                for act in job["acts"]:
                    whole = act.get("members") == list(range(ranks))
                    if whole and act["kind"] not in ("new_group", "wait"):
                        kinds.setdefault(kind_of(act), act)
            shared = manager.dict()
            mp.spawn(probe, args=(f"{folder}/probe{ranks}", list(kinds.values()), shared), nprocs=ranks)
            for (_, kind), reason in sorted(shared.items(), reverse=True):  # the first rank's in the end
                reasons[kind] = reason
            refused = {kind for _, kind in shared}
            # A kind that no call of all ranks has is not tried.
            for job in own:
                refused |= {kind_of(act) for act in job["acts"] if act["kind"] not in ("new_group", "wait")} - set(kinds)
            results = manager.dict()
            mp.spawn(run, args=(f"{folder}/meet{ranks}", own, refused, results), nprocs=ranks)
            for counted, texts in results.values():
                found.update(counted)
                wrong += texts
            wrong += [f"{ranks} ranks: {ranks - len(results)} processes ended without a word"] * (len(results) != ranks)
    print_refusals(reasons)
    for text in wrong:
        print(text)
    print(f"{len(jobs)} jobs: " + ", ".join(f"{count} {what}" for what, count in sorted(found.items())) + f"; {len(wrong)} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
