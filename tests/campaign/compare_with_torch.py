#!/usr/bin/env python3
"""Reductions of rankloom's beside torch's own operations on the CPU, and beside gloo in three processes.

    build/tests/campaign/write_reductions > reductions.jsonl    made by ./dev build tests/campaign/write_reductions
    .venv-torch/bin/python tests/campaign/compare_with_torch.py reductions.jsonl

Prints a table of the bits: by operation, dtype and kind of values, how many of 200 elements differ, counted where at
least one is no NaN. Ends with 1 if a value differs where arithmetic is exact: small integers in any dtype.
"""

import functools
import json
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 3
NAMES = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "complex64", "complex128"]
DTYPES = {"bool": torch.bool} | {name: getattr(torch, name) for name in NAMES}
OPS = {
    "sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "product": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX, "band": dist.ReduceOp.BAND, "bor": dist.ReduceOp.BOR, "bxor": dist.ReduceOp.BXOR,
}  # fmt: skip


def tensor(text, dtype):
    return torch.frombuffer(bytearray.fromhex(text), dtype=DTYPES[dtype]).clone()


def by_torch(op, tensors):
    """One operation after another in rank order, as a program without collectives would."""
    steps = {
        "sum": torch.add, "avg": torch.add, "product": torch.mul, "min": torch.minimum, "max": torch.maximum,
        "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor,
    }  # fmt: skip
    if op.startswith("premul_sum"):
        return functools.reduce(torch.add, [one * 0.5 for one in tensors])
    reduced = functools.reduce(steps[op], tensors)
    return reduced / len(tensors) if op == "avg" else reduced


def differ(have, want):
    """Elements whose bits differ; two NaNs are alike, whatever their bits."""
    if have.is_complex():
        have, want = torch.view_as_real(have).flatten(), torch.view_as_real(want).flatten()
    same = have.view(torch.uint8).reshape(len(have), -1) == want.view(torch.uint8).reshape(len(want), -1)
    same = same.all(dim=1)
    if have.is_floating_point():
        both = have.isnan() & want.isnan()
        same = same | both.reshape(len(have), -1).all(dim=1)
    return int((~same).sum())


def gloo(rank, path, cases, found):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=RANKS)
    for number, case in enumerate(cases):
        mine = tensor(case["inputs"][rank], case["dtype"])
        op = OPS.get(case["op"]) or dist._make_nccl_premul_sum(0.5)
        try:
            dist.all_reduce(mine, op)
            text = bytes(mine.view(torch.uint8).tolist()).hex() if mine.dtype != torch.bool else bytes(mine.tolist()).hex()
        except Exception as error:  # of any kind: what gloo cannot do is a result
            text = "refused: " + str(error).split("\n")[0][:70]
        if rank == 0:
            found[number] = text
    dist.destroy_process_group()


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        cases = [json.loads(line) for line in file]
    with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
        found = manager.dict()
        mp.spawn(gloo, args=(folder + "/meeting", cases, found), nprocs=RANKS)
        gloos = dict(found)
    wrong = 0
    print("| operation | dtype | values | torch's operations differ in | gloo differs in |\n| --- | --- | --- | --- | --- |")
    for number, case in enumerate(cases):
        want = tensor(case["output"], case["dtype"])
        try:
            own = by_torch(case["op"], [tensor(one, case["dtype"]) for one in case["inputs"]])
            own = differ(own.to(want.dtype), want)
        except (RuntimeError, TypeError) as error:
            own = "refused: " + str(error).split("\n")[0][:70]
        text = gloos[number]
        other = text if text.startswith("refused") else differ(tensor(text, case["dtype"]), want)
        exact = case["values"] == "small" and case["op"] not in ("avg",)
        wrong += exact and any(isinstance(one, int) and one > 0 for one in (own, other))
        print(f"| {case['op']} | {case['dtype']} | {case['values']} | {own} | {other} |")
    print(f"{len(cases)} reductions of 200 elements; {wrong} differ where arithmetic is exact")
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
