"""Random scripts of store operations: our stores answer as PyTorch's HashStore, TCPStore and FileStore do."""

import pathlib
import random
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import rankloom.torch
import torch.distributed as dist
from torch.distributed import FileStore, HashStore, TCPStore  # PyTorch's own, bound before there are ranks

SCRIPTS, STEPS = 200, 40
# pybind11 takes bytes where it wants a string.
KEYS: list[Any] = ["", "a", "b", "a/b", "nul\0inside", "ключ", "long" * 100]
VALUES: list[Any] = ["", "x", b"\x00\xff\xfe", "7", "-12", b"\n", b"\x80" * 3000]
BRIEF = timedelta(milliseconds=1)


class Script:
    """Draws operations from a seed, makes them, and keeps the answers. Nothing waits for what nobody sets."""

    def __init__(self, store: Any, kind: str, seed: int) -> None:
        self.store, self.kind, self.rng = store, kind, random.Random(seed)
        self.keys_at_first = store.num_keys()  # a FileStore of PyTorch's counts its users in one

    def key(self) -> Any:
        return self.rng.choice(KEYS)

    def value(self) -> Any:
        return self.rng.choice(VALUES)

    def keys(self) -> list[Any]:
        return [self.key() for _ in range(self.rng.randrange(4))]

    def listed(self) -> list[str]:
        return sorted(set(self.store.list_keys()) - {"efcount/"})  # that one

    def has(self, key: str) -> bool:
        return key in self.listed()

    def set(self) -> Any:
        return self.store.set(self.key(), self.value())

    def get(self) -> Any:
        key = self.key()
        return self.store.get(key) if self.has(key) else None

    def add(self) -> Any:
        key, amount = self.key(), self.rng.choice([0, 1, -3, 2**40])
        have = self.store.get(key) if self.has(key) else b"0"
        # Of other values PyTorch reads as much as is a number, or the server hangs up.
        return self.store.add(key, amount) if re.fullmatch(rb"-?\d{1,15}", have) else None

    def append(self) -> Any:
        return self.store.append(self.key(), self.value())

    def check(self) -> Any:
        return self.store.check(self.keys())

    def delete_key(self) -> Any:
        key = self.key()
        there = self.has(key)
        deleted = self.store.delete_key(key)
        return deleted if self.kind != "FileStore" or there else None  # PyTorch's says true

    def compare_set(self) -> Any:
        key = self.key()
        now = self.store.get(key) if self.has(key) and self.rng.random() < 0.5 else self.value()
        return self.store.compare_set(key, now, self.value())

    def multi_set(self) -> Any:
        keys = self.keys()
        return self.store.multi_set(keys, [self.value() for _ in keys])

    def multi_get(self) -> Any:
        keys = self.keys()
        return self.store.multi_get(keys) if all(self.has(key) for key in keys) else None

    def num_keys(self) -> Any:
        return self.store.num_keys() - self.keys_at_first

    def list_keys(self) -> Any:
        return self.listed()

    def wait(self) -> Any:
        keys = self.keys()
        if self.store.check(keys):
            self.store.wait(keys)
            return "came"
        if self.rng.random() < 0.9:
            return None
        with pytest.raises(RuntimeError) as caught:
            self.store.wait(keys, BRIEF)
        return type(caught.value) if self.kind != "FileStore" else "timeout"  # PyTorch's has no type for it

    def queue_push(self) -> Any:
        return self.store.queue_push(self.key(), self.value())

    def queue_pop(self) -> Any:
        key = self.key()
        if self.store.queue_len(key) > 0:
            return self.store.queue_pop(key, block=self.rng.random() < 0.5)
        with pytest.raises(dist.DistStoreError) as caught:
            self.store.queue_pop(key, block=False)
        return type(caught.value)

    def queue_len(self) -> Any:
        return self.store.queue_len(self.key())

    def run(self) -> list[Any]:
        names = ["set", "get", "add", "append", "check", "delete_key", "compare_set", "multi_set", "multi_get", "num_keys", "list_keys", "wait"]
        if self.kind != "FileStore":  # of which PyTorch's has no queues
            names += ["queue_push", "queue_push", "queue_pop", "queue_len"]
        answers = []
        for _ in range(STEPS):
            name = self.rng.choice(names)
            answers.append((name, getattr(self, name)()))
        return [*answers, [(key, self.store.get(key)) for key in self.listed()]]


def of_ranks(make: Callable[[int], Any], kind: str, **gear: Any) -> list[Any]:
    report = rankloom.torch.run(lambda rank: [Script(make(seed), kind, seed).run() for seed in range(SCRIPTS)], 1, backend=None, **gear)
    report.raise_if_failed()
    answers: list[Any] = report.results[0]
    return answers


@pytest.mark.parametrize("kind", ["HashStore", "TCPStore", "FileStore"])
def test_a_random_script_has_the_answers_of_pytorchs_store(kind: str, tmp_path: pathlib.Path) -> None:
    def own(seed: int) -> Any:
        if kind == "TCPStore":
            return TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        return HashStore() if kind == "HashStore" else FileStore(f"{tmp_path}/{seed}", 1)

    def ours(seed: int) -> Any:
        if kind == "TCPStore":
            return dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        return dist.HashStore() if kind == "HashStore" else dist.FileStore(f"/nowhere/{seed}", 1)

    want = [Script(own(seed), kind, seed).run() for seed in range(SCRIPTS)]
    met = {name: 0 for script in want for name, _ in script[:-1]}
    for script in want:
        for name, answer in script[:-1]:
            met[name] += answer is not None or name in ("set", "append", "multi_set", "queue_push")
    assert min(met.values()) > 100, met
    for gear in ({"parallel": True}, {}, {"seed": 1}):
        have = of_ranks(ours, kind, **gear)
        for seed in range(SCRIPTS):
            assert have[seed] == want[seed], f"script {seed}, {gear}"
    if kind == "HashStore":
        assert [Script(rankloom.torch.HashStore(), kind, seed).run() for seed in range(SCRIPTS)] == want
