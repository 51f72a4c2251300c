"""The variables that torchrun sets for a script, and the state that a script keeps in the one interpreter that a process has."""

import argparse
import dataclasses
import logging
import os
import pickle
import sys

import torch
import torch.distributed as dist


@dataclasses.dataclass
class Item:
    rank: int


COUNT = 0


def count() -> int:
    global COUNT
    COUNT += 1
    return COUNT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    arguments = parser.parse_args()
    local = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(local)
    dist.init_process_group(init_method="env://", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    rank = dist.get_rank()
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    os.environ["MINE"] = f"mine is {rank}"
    sys.argv.append(f"--rank={rank}")
    for _ in range(rank + 1):
        count()
    items = [None] * dist.get_world_size()
    dist.all_gather_object(items, Item(rank))
    assert items == [Item(other) for other in range(dist.get_world_size())]
    assert pickle.loads(pickle.dumps(count)) is count
    assert sys.modules["__main__"].COUNT == COUNT == rank + 1
    assert os.environ["MINE"] == f"mine is {rank}" and sys.argv[-1] == f"--rank={rank}"
    logging.info(f"{arguments.name}: rank {rank}, local {local} of {os.environ['LOCAL_WORLD_SIZE']}, counted {COUNT}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
