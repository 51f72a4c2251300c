#!/usr/bin/env python3
"""Reductions of rankloom's beside torch's own operations on the CPU, and beside gloo in three processes.

    build/tests/campaign/write_reductions > reductions.jsonl    made by ./dev build tests/campaign/write_reductions
    .venv-torch/bin/python tests/campaign/compare_with_torch.py reductions.jsonl

Each row is judged, part by part (a complex number has two): it has the bits of exact(), which says in torch's operations what
rankloom promises; torch's plain operations, one after another, and gloo have the same bits or differ as CLASSES allows, in the
parts that a class names and by nothing but the values that it computes. Refusals are those of REFUSALS. Two NaNs are alike;
rankloom's has one bit pattern for each dtype. Prints a table of the rows and how often each class was met. Ends with 1 and a
line that begins with "wrong" for each row that is anything else.
"""

import datetime
import functools
import itertools
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 3  # of the rows that gloo makes, too
NAMES = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "complex64", "complex128"]
DTYPES = {"bool": torch.bool} | {name: getattr(torch, name) for name in NAMES}
OPS = {
    "sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "product": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX, "band": dist.ReduceOp.BAND, "bor": dist.ReduceOp.BOR, "bxor": dist.ReduceOp.BXOR,
}  # fmt: skip
NAN = {torch.float16: 0x7E00, torch.bfloat16: 0x7FC0, torch.float32: 0x7FC00000, torch.float64: 0x7FF8000000000000}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by element size


def tensor(text, dtype):
    """A copy is one of bytes: of bools torch's would be of 0 and 1."""
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8).clone().view(DTYPES.get(dtype) or getattr(torch, dtype))


def parts(one):
    """Its real numbers, in one dimension; of bools the bytes."""
    if one.is_complex():
        return torch.view_as_real(one).flatten()
    return one.view(torch.uint8) if one.dtype == torch.bool else one


def unlike(have, want):
    """Which parts differ in their bits; two NaNs are alike, whatever their bits."""
    have, want = parts(have), parts(want)
    kind = BITS[want.element_size()]
    return (have.view(kind) != want.view(kind)) & ~(have.isnan() & want.isnan())


def differ(have, want):
    """The number of elements that differ."""
    off = unlike(have, want)
    return int((off.reshape(-1, 2).any(dim=1) if want.is_complex() else off).sum())


class Row:
    """A line of the file. Tensors of complex numbers have the shape (elements, 2) where they are called reals."""

    def __init__(self, line):
        self.line = json.loads(line)
        self.name, self.op, self.values, self.order = (self.line[key] for key in ("dtype", "op", "values", "order"))
        self.factor, self.each_step = float(self.line["factor"]), self.line["rounds_each_step"]
        self.inputs = [tensor(one, self.name) for one in self.line["inputs"]]
        self.output = self.line["output"] and tensor(self.line["output"], self.name)
        self.dtype = self.inputs[0].dtype
        self.ranks = len(self.inputs)
        self.half = self.dtype in (torch.float16, torch.bfloat16)
        self.floating, self.complex = self.dtype.is_floating_point, self.dtype.is_complex
        self.chosen = 0  # of the orders that a seeded one may be: the one that exact() has found

    def __str__(self):
        op = f"{self.op}({self.factor:.6g})" if self.op == "premul_sum" else self.op
        return f"{op} | {self.name} | {self.values} | {self.order}{', rounded each step' if self.each_step else ''}"

    def on_gloo(self):
        return self.order == "rank" and not self.each_step

    def reals(self):
        return [torch.view_as_real(one) for one in self.inputs] if self.complex else self.inputs


def combined(order, tensors, step):
    """The tensors in an order, by `step`, along their first dimension; of a seeded order in each that it may be."""
    ranks = len(tensors)
    if order == "tree":
        while len(tensors) > 1:
            tensors = [functools.reduce(step, tensors[at : at + 2]) for at in range(0, len(tensors), 2)]
        return tensors
    if order == "ring":
        chunks = [one.chunk(ranks) for one in tensors]
        return [torch.cat([functools.reduce(step, [chunks[(at + 1 + i) % ranks][at] for i in range(ranks)]) for at in range(ranks)])]
    if order == "seeded":
        return [functools.reduce(step, some) for some in itertools.permutations(tensors)]
    return [functools.reduce(step, tensors[::-1] if order == "reversed" else tensors)]


def product_of_complex(a, x):
    return torch.stack([a[:, 0] * x[:, 0] - a[:, 1] * x[:, 1], a[:, 0] * x[:, 1] + a[:, 1] * x[:, 0]], dim=1)


def lower(a, x):
    return torch.where(a.isnan() | ~(x.isnan() | (x < a)), a, x)


def higher(a, x):
    return torch.where(a.isnan() | ~(x.isnan() | (x > a)), a, x)


PLAIN = {
    "sum": torch.add, "avg": torch.add, "premul_sum": torch.add, "product": torch.mul, "min": torch.minimum, "max": torch.maximum,
    "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor,
}  # fmt: skip
EXACT = PLAIN | {"min": lower, "max": higher}


def exact(row):
    """The promises of rankloom: reals one by one; float16 and bfloat16 in float32, or in themselves; a NaN and the first of
    equals stay; a byte of bool is true unless it is 0. A list of one, or of what a seeded order may give."""
    given = row.reals()
    step = product_of_complex if row.complex and row.op == "product" else EXACT[row.op]
    if row.half and not row.each_step:
        given = [one.float() for one in given]
    if row.dtype == torch.bool:
        given = [parts(one) != 0 for one in given]
    if row.op == "premul_sum":
        given = [one * torch.tensor(row.factor, dtype=one.dtype) for one in given]
    reduced = combined(row.order, given, step)
    if row.op == "avg":
        reduced = [one / torch.tensor(row.ranks, dtype=one.dtype) for one in reduced]
    return [(torch.view_as_complex(one) if row.complex else one).to(row.dtype) for one in reduced]


def plain(row):
    """As a program without collectives would."""
    given = [parts(one).ne(0) for one in row.inputs] if row.dtype == torch.bool else row.inputs
    if row.op == "premul_sum":
        given = [one * row.factor for one in given]
    reduced = combined(row.order, given, PLAIN[row.op])[row.chosen]
    return reduced / row.ranks if row.op == "avg" else reduced


# Differences that others may have, and no other ones.


class Class(NamedTuple):
    who: str
    name: str
    why: str
    of: Callable  # whether a row may be of it
    where: Callable  # of a row, and what rankloom gives: a mask of the parts that may differ
    like: Callable  # of a row, and what rankloom gives: tensors, one of which each such part is like


def of_parts(mask, row):
    """A mask of elements as one of parts."""
    return mask.repeat_interleave(2) if row.complex else mask


def everywhere(row, ours):
    return torch.ones(len(parts(ours)), dtype=torch.bool)


def any_of(masks):
    return functools.reduce(torch.logical_or, masks)


def step_is_inexact(row, ours):
    """Elements of which a step, in float32, is no number of the dtype."""

    def flagged(value, flag):
        return torch.stack([value, torch.maximum(flag, unlike(value.to(row.dtype).float(), value).float())], dim=1)

    def step(a, x):
        return flagged(EXACT[row.op](a[:, 0], x[:, 0]), torch.maximum(a[:, 1], x[:, 1]))

    factor = torch.tensor(row.factor if row.op == "premul_sum" else 1, dtype=torch.float32)
    given = [one.float() * factor for one in row.inputs]
    return combined(row.order, [flagged(one, torch.zeros_like(one)) for one in given], step)[row.chosen][:, 1] != 0


def in_steps(row, order):
    """Each step rounded to the dtype; the factor of a premul_sum is not. Reals one by one."""
    wide = torch.float32 if row.half else row.reals()[0].dtype

    def rounded(value):
        return value.to(row.dtype).float() if row.half else value

    given = [one.to(wide) for one in row.reals()]
    if row.op == "premul_sum":
        given = [rounded(one * torch.tensor(row.factor, dtype=wide)) for one in given]
    reduced = combined(order, given, lambda a, x: rounded(EXACT[row.op](a, x)))
    if row.op == "avg":
        reduced = [one / torch.tensor(row.ranks, dtype=wide) for one in reduced]
    return [(torch.view_as_complex(one) if row.complex else one).to(row.dtype) for one in reduced]


def product_with_factor_differs(row, ours):
    factor = torch.tensor(row.factor, dtype=torch.float32)
    return any_of([unlike((one.float() * factor).to(row.dtype), (one.float() * factor.to(row.dtype)).to(row.dtype)) for one in row.inputs])


def not_finite_or_zero(row, ours):
    not_finite = any_of([~one.isfinite() for one in [*row.inputs, ours]])
    return of_parts(not_finite, row) | (parts(ours) == 0)


def times_one(row, ours):
    """torch.add of complex numbers adds the second one times 1+0i; the division by n+0i is a product with 1/n."""

    def step(a, x):
        return a + torch.stack([x[:, 0] * 1 - x[:, 1] * 0, x[:, 0] * 0 + x[:, 1] * 1], dim=1)

    reduced = combined(row.order, row.reals(), step)[row.chosen]
    if row.op == "avg":
        reduced = reduced * (1 / torch.tensor(row.ranks, dtype=reduced.dtype))
        reduced = torch.stack([reduced[:, 0] + reduced[:, 1] * 0, reduced[:, 1] - reduced[:, 0] * 0], dim=1)
    return [torch.view_as_complex(reduced)]


def nan_or_zero(row, ours):
    return any_of([one.isnan() for one in row.inputs]) | (ours == 0)


def by_comparisons(row, ours):
    """std::min(a, b) is b < a ? b : a: of a NaN and of equals the first stays. In any order of three ranks."""

    def step(a, x):
        return torch.where(x < a if row.op == "min" else a < x, x, a)

    return [step(a, step(b, c)) for a, b, c in itertools.permutations(row.inputs)] + combined("seeded", row.inputs, step)


def byte_is_above_one(row, ours):
    of_bytes = [parts(one) for one in row.inputs]
    masks = [one > 1 for one in of_bytes]
    return any_of([*masks, sum((one != 0).int() for one in of_bytes) > 1]) if row.op == "sum" else any_of(masks)


def as_bytes(row, ours):
    return [functools.reduce(PLAIN[row.op], [parts(one) for one in row.inputs]).view(torch.bool)]


ADDS = ("sum", "avg", "product", "premul_sum")
CLASSES = [
    Class("torch", "rounds each step", "float16 and bfloat16: rankloom adds up in float32 and rounds once, unless told to round each step",
          lambda row: row.half and not row.each_step and row.op in ADDS, step_is_inexact,
          lambda row, ours: [in_steps(row, row.order)[row.chosen]]),
    Class("torch", "factor in float32", "a premul_sum that rounds each step begins with its factor; torch's scalar times a tensor does not",
          lambda row: row.each_step and row.op == "premul_sum", product_with_factor_differs,
          lambda row, ours: [in_steps(row, row.order)[row.chosen]]),
    Class("torch", "the other zero", "min and max of 0.0 and -0.0, which are equal: torch's depends on the processor",
          lambda row: row.floating and row.op in ("min", "max"), lambda row, ours: ours == 0, lambda row, ours: [-ours]),
    Class("torch", "complex times 1+0i", "the sum of complex numbers: infinity times 0 is a NaN, and -0.0 may become 0.0",
          lambda row: row.complex and row.op == "sum", not_finite_or_zero, times_one),
    Class("torch", "complex times 1/n", "the average of complex numbers: a product with 1/n rounds twice",
          lambda row: row.complex and row.op == "avg", everywhere, times_one),
    Class("gloo", "another order", "rounds each step, in an order of its own for each element",
          lambda row: (row.floating or row.complex) and row.op in ADDS, everywhere, lambda row, ours: in_steps(row, "seeded")),
    Class("gloo", "first stays", "min and max of floats: a NaN stays only where it came first, and so does either zero",
          lambda row: row.floating and row.op in ("min", "max"), nan_or_zero, by_comparisons),
    Class("gloo", "bools are bytes", "arithmetic of uint8: two true ones add up to 2, and other bytes than 0 and 1 stay what they are",
          lambda row: row.dtype == torch.bool, byte_is_above_one, as_bytes),
]  # fmt: skip


class Refusal(NamedTuple):
    who: str
    of: Callable
    text: str  # part of what it says


def integral(row):
    return not (row.floating or row.complex)


def is_of_bits(row):
    return row.op in ("band", "bor", "bxor")


# The first that fits a row tells what must happen; none: there is a result, to be judged by its bits.
REFUSALS = [
    Refusal("gloo", lambda row: row.name in ("int16", "float8_e4m3fn", "float8_e5m2"), "Invalid scalar type"),
    Refusal("gloo", lambda row: row.op == "premul_sum", "Cannot use ReduceOp.PREMUL_SUM with Gloo"),
    Refusal("gloo", lambda row: row.complex and row.op not in ("sum", "avg"), "on complex tensors"),
    Refusal("gloo", lambda row: row.floating and is_of_bits(row), "with non-integral dtype"),
    Refusal("gloo", lambda row: integral(row) and row.op == "avg", "result type Float can't be cast to the desired output type"),
    # A reduction that rankloom refuses torch has with a result of another dtype, or refuses, too.
    Refusal("torch", lambda row: integral(row) and row.op in ("avg", "premul_sum"), "gives float32"),
    Refusal("torch", lambda row: row.complex and row.op == "premul_sum", "gives complex"),
    Refusal("torch", lambda row: row.name.startswith("float8") and row.op == "product", "gives float8"),
    Refusal("torch", lambda row: row.output is None, "not implemented for"),
    Refusal("torch", lambda row: row.output is None, "does not support complex"),
]


def expected_refusals(row, who):
    return [one.text for one in REFUSALS if one.who == who and one.of(row)]


def on_gloo(rank, meeting, path, found):
    patience = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS, timeout=patience)
    results = []
    for row in read(path):
        if not row.on_gloo():
            results.append(None)
            continue
        mine = row.inputs[rank]
        op = OPS.get(row.op) or dist._make_nccl_premul_sum(row.factor)
        try:
            dist.all_reduce(mine, op)
            results.append(bytes(mine.view(torch.uint8).tolist()))
        except Exception as error:  # of any kind: what gloo cannot do is a result
            results.append(str(error).split("\n")[0])
    if rank == 0:
        found.extend(results)
    dist.destroy_process_group()


def read(path):
    with open(path, encoding="utf-8") as file:
        return [Row(line) for line in file]


class Judge:
    def __init__(self):
        self.wrong = []
        self.rows, self.parts = Counter(), Counter()  # by class

    def error(self, row, text):
        self.wrong.append(f"wrong: {row}: {text}")
        return "wrong"

    def ours(self, row):
        """Whether rankloom's bits are those that it promises."""
        for number, want in enumerate(exact(row)):
            if not unlike(row.output, want).any():
                row.chosen = number
                break
        else:
            self.different(row, "exact", row.output, unlike(row.output, want))
        reals = parts(row.output)
        if reals.is_floating_point():
            nans = reals[reals.isnan()].view(BITS[reals.element_size()])
            if (nans != NAN[reals.dtype]).any():
                self.error(row, "a NaN of other bits")

    def different(self, row, who, have, off):
        at = int(off.nonzero()[0])
        given = [parts(one)[at].item() for one in row.inputs]
        told = f"{int(off.sum())} parts, the first is {at}: {parts(have)[at].item()!r} beside {parts(row.output)[at].item()!r}"
        return self.error(row, f"{who}: {told} of {given}")

    def judge(self, row, who, outcome):
        """`outcome`: a tensor, or why there is none. Gives what it is: equal, classes with how many parts, or wrong."""
        texts = expected_refusals(row, who)
        if isinstance(outcome, str) or texts:
            told = outcome if isinstance(outcome, str) else "a result"
            if any(text in told for text in texts):
                return told[:60]
            return self.error(row, f"{who}: have {told}, want {' or '.join(texts) or 'a result'}")
        off = unlike(outcome, row.output)
        if not off.any():
            return "equal"
        told = []
        for one in CLASSES:
            if one.who != who or not one.of(row):
                continue
            alike = any_of([~unlike(outcome, like) for like in one.like(row, row.output)])
            mine = off & one.where(row, row.output) & alike
            if mine.any():
                self.rows[one.name] += 1
                self.parts[one.name] += int(mine.sum())
                told.append(f"{one.name}: {int(mine.sum())}")
            off = off & ~mine
        return self.different(row, who, outcome, off) if off.any() else ", ".join(told)


def by_torch(row):
    try:
        have = plain(row)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        return str(error).split("\n")[0]
    return have if row.output is not None else "gives " + str(have.dtype).removeprefix("torch.")


def main():
    path = sys.argv[1]
    rows, judge = read(path), Judge()
    with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
        found = manager.list()
        mp.spawn(on_gloo, args=(folder + "/meeting", path, found), nprocs=RANKS)
        gloos = list(found)
    print("| operation | dtype | values | order | torch's operations | gloo |\n| --- | --- | --- | --- | --- | --- |")
    for row, gloo in zip(rows, gloos, strict=True):
        if row.output is not None:
            judge.ours(row)
        verdicts = [judge.judge(row, "torch", by_torch(row)), ""]
        if isinstance(gloo, bytes):
            gloo = tensor(gloo.hex(), row.name)
        if gloo is not None:
            verdicts[1] = judge.judge(row, "gloo", gloo)
        print(f"| {row} | {' | '.join(verdicts)} |")
    print("\n| who | class | rows | parts | why |\n| --- | --- | --- | --- | --- |")
    for one in CLASSES:
        print(f"| {one.who} | {one.name} | {judge.rows[one.name]} | {judge.parts[one.name]} | {one.why} |")
    for text in judge.wrong:
        print(text)
    print(f"{len(rows)} reductions of 200 elements, {sum(row.on_gloo() for row in rows)} on gloo, too; {len(judge.wrong)} wrong")
    sys.exit(bool(judge.wrong))


if __name__ == "__main__":
    main()
