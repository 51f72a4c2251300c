"""Reductions of every operation and dtype beside torch's own operations and gloo, and through the bridge."""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import rankloom.torch
import torch
import torch.distributed as dist

ROOT = Path(__file__).parents[2]
WRITER = ROOT / "build" / "tests" / "campaign" / "write_reductions"
COMPARER = ROOT / "tests" / "campaign" / "compare_with_torch.py"
Row = dict[str, Any]


@functools.cache
def written() -> str:
    return subprocess.run([WRITER], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def rows() -> list[Row]:
    if not WRITER.exists():
        pytest.skip(f"{WRITER} is not built: ./dev build tests/campaign/write_reductions")
    return [json.loads(line) for line in written().splitlines()]


def bytes_of(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8).clone()


def tensor(text: str, dtype: str) -> torch.Tensor:
    return bytes_of(text).view(getattr(torch, dtype))


def op_of(row: Row) -> Any:
    return dist._make_nccl_premul_sum(float(row["factor"])) if row["op"] == "premul_sum" else getattr(dist.ReduceOp, row["op"].upper())


def changed(rows: list[Row]) -> dict[str, Row]:
    """Rows whose output is a little wrong, by what the program calls them."""

    def found(dtype: str, op: str, values: str, **more: Any) -> Row:
        want = {"dtype": dtype, "op": op, "values": values, "order": "rank", "rounds_each_step": False, **more}
        return next(row for row in rows if want.items() <= row.items())

    def other(row: Row, at: Any, value: Any) -> Row:
        out = tensor(row["output"], row["dtype"])
        out[at] = value
        return {**row, "output": bytes(out.view(torch.uint8).tolist()).hex()}

    def nans(row: Row) -> torch.Tensor:
        return tensor(row["output"], row["dtype"]).isnan()

    one_bit = found("float32", "sum", "dense")
    each_step = found("float16", "sum", "dense", rounds_each_step=True)
    parts = found("complex64", "product", "small")
    zeros = tensor(parts["output"], "float32") == 0
    least, most = found("float64", "min", "special"), found("bfloat16", "max", "special")
    seeded = found("float32", "sum", "dense", order="seeded")
    return {
        "sum | float32 | dense | rank": {**one_bit, "output": f"{int(one_bit['output'][:2], 16) ^ 1:02x}{one_bit['output'][2:]}"},
        "sum | float16 | dense | rank": {**each_step, "rounds_each_step": False},
        "product | complex64 | small | rank": {**parts, "output": other({**parts, "dtype": "float32"}, zeros.nonzero()[0], -0.0)["output"]},
        "min | float64 | special | rank": other(least, nans(least).nonzero()[0], 1.0),
        "max | bfloat16 | special | rank": {**most, "output": other({**most, "dtype": "int16"}, nans(most).nonzero()[0], 0x7FC1)["output"]},
        "sum | bool | small | rank": other({**found("bool", "sum", "small"), "dtype": "uint8"}, 0, 2) | {"dtype": "bool"},
        "sum | float32 | dense | seeded": {**seeded, "output": found("float32", "sum", "dense", order="ring")["output"]},
        "avg | int8 | small | rank": {**found("int8", "avg", "small"), "output": found("int8", "sum", "small")["output"]},
    }


def test_each_has_the_bits_of_torch_and_gloo_or_differs_as_is_known(rows: list[Row], tmp_path: Path) -> None:
    path = tmp_path / "reductions.jsonl"
    wrong = changed(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *wrong.values()]))
    ran = subprocess.run([sys.executable, "-W", "ignore", COMPARER, path], capture_output=True, text=True, timeout=240)
    told = [line for line in ran.stdout.splitlines() if line.startswith("wrong: ")]
    assert {re.sub(r"^wrong: (.*?): .*", r"\1", line) for line in told} == wrong.keys(), "\n".join(told) + ran.stderr
    assert ran.returncode == 1
    of_nan = [line for line in told if "bfloat16" in line]
    assert of_nan == ["wrong: max | bfloat16 | special | rank: a NaN of other bits"]
    classes = re.findall(r"^\| (\w+ \| [^|]+) \| (\d+) \| (\d+) \| [^|]+ \|$", ran.stdout, re.MULTILINE)
    assert len(classes) == 8 and all(int(count) > 0 for _, *counts in classes for count in counts), classes
    counted = re.search(r"^(\d+) reductions of 200 elements, (\d+) on gloo, too; (\d+) wrong$", ran.stdout, re.MULTILINE)
    assert counted and int(counted[1]) == len(rows) + len(wrong) and int(counted[3]) == len(told), ran.stdout[-500:]


def test_the_bridge_has_the_same_bits(rows: list[Row], seed: int | None) -> None:
    there = [row for row in rows if row["output"] and row["order"] == "rank" and not row["rounds_each_step"]]
    # torch.distributed itself refuses them.
    there = [row for row in there if row["op"] != "product" or not row["dtype"].startswith("complex")]

    def body(rank: int) -> list[str]:
        found = []
        for row in there:
            mine = tensor(row["inputs"][rank], row["dtype"])
            dist.all_reduce(mine, op_of(row))
            found.append(bytes(mine.view(torch.uint8).tolist()).hex())
        return found

    report = rankloom.torch.run(body, 3, seed=seed)
    report.raise_if_failed()
    for of_rank in report.results:
        assert [row["op"] + " of " + row["dtype"] for row, have in zip(there, of_rank, strict=True) if have != row["output"]] == []
