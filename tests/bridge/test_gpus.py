"""Scripts that want GPUs, on a machine that has none, of the kinds that PyTorch's examples have (test_pytorch_examples.py)."""

import csv
import pathlib
import re

import pytest
import torch
import torch.distributed as dist
from launching import SCRIPTS, launch_here, launch_text_here, lines

GEARS = [[], ["--seed", "7"]]

# Script, the launcher's options, the script's arguments, and a line that each rank prints once.
KINDS: dict[str, tuple[list[str], list[str], str]] = {
    "gpus.py": (["--nproc-per-node=3"], [], r"GPU \d of 3: loss \d\.\d{4}"),
    "snapshots.py": (["--nnodes=2", "--nproc-per-node=2"], ["1"], r"rank \d on GPU [01]: 1 rounds of 4 batches"),
    "spawn_gpus.py": (["--spawn", "--nproc-per-node=2"], ["2"], r"GPU [01]: \d\.\d{4}"),
    "fsdp2_resume.py": (["--nproc-per-node=2"], ["--mixed"], r"rank \d: from \d\.\d{4} to 0\.\d{4}"),
    "tensor_parallel.py": (["--nproc-per-node=2"], [], r"step 3: \d+\.\d{4}, 12 of 24 columns here"),
    "sequence_parallel.py": (["--standalone", "--nproc-per-node=4"], [], r"rank \d: rows \d to \d, sum -?\d\.\d{4}"),
    "two_dimensions.py": (["--nproc-per-node=4"], [], r"pair [01], half [01]: loss [12]\.\d{4}"),
    "ddp.py": (["--nproc-per-node=2", "--rdzv-id=101"], ["1"], r"epoch 0: loss \d\.\d{4}, 48 samples of mine"),
}


@pytest.mark.parametrize("gear", GEARS, ids=["fifo", "seed"])
@pytest.mark.parametrize("script", KINDS)
def test_a_script_that_wants_gpus(script: str, gear: list[str], tmp_path: pathlib.Path) -> None:
    options, arguments, pattern = KINDS[script]
    done = launch_here(tmp_path, "--gpus-on-cpu", *options, *gear, str(SCRIPTS / script), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = 4 if script in ("snapshots.py", "sequence_parallel.py", "two_dimensions.py") else 3 if script == "gpus.py" else 2
    assert sum(re.fullmatch(pattern, line) is not None for line in lines(done.stdout)) == ranks, done.stdout


def test_all_ranks_at_once_have_their_gpus(tmp_path: pathlib.Path) -> None:
    done = launch_here(tmp_path, "--gpus-on-cpu", "--nproc-per-node=3", "--parallel", str(SCRIPTS / "gpus.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line[:9] for line in lines(done.stdout)] == ["GPU 0 of ", "GPU 1 of ", "GPU 2 of "]


@pytest.mark.parametrize("script", ["snapshots.py", "fsdp2_resume.py"])
def test_a_second_run_goes_on(script: str, tmp_path: pathlib.Path) -> None:
    options = ["--gpus-on-cpu", "--nproc-per-node=2", "--seed=7"]
    first, second = (
        launch_here(tmp_path, *options, str(SCRIPTS / script), *(["2"] if script == "snapshots.py" else [])) for _ in range(2)
    )
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    if script == "snapshots.py":
        assert lines(second.stdout) == ["rank 0 goes on after 2 rounds", "rank 1 goes on after 2 rounds"]
    else:
        began, went_on = (float(lines(done.stdout)[0].split()[3]) for done in (first, second))
        assert went_on < began / 2, (first.stdout, second.stdout)


def test_without_the_option_a_script_finds_what_is_there(tmp_path: pathlib.Path) -> None:
    if torch.accelerator.device_count() > 1:
        pytest.skip("this machine has GPUs")
    done = launch_here(tmp_path, "--nproc-per-node=2", str(SCRIPTS / "gpus.py"))
    assert done.returncode == 1 and " failed: SystemExit: want two GPUs\n" in done.stderr, done.stderr


ANSWERS = '''
import os, threading
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.data import DataLoader

rank = int(os.environ["LOCAL_RANK"])
assert torch.cuda.is_available() and torch.cuda.device_count() == torch.accelerator.device_count() == 2
assert str(torch.accelerator.current_accelerator()) == "cuda" and torch.device(1) == torch.device("cuda:1")
assert torch.cuda.current_device() == 0
torch.cuda.set_device(f"cuda:{rank}")
assert torch.cuda.current_device() == torch.accelerator.current_device_index() == rank
with torch.cuda.device(1 - rank):
    assert torch.cuda.current_device() == 1 - rank
assert torch.cuda.current_device() == rank
assert torch.cuda.get_device_name() == torch.cuda.get_device_properties(0).name == "CPU"
assert torch.cuda.get_device_capability() == (0, 0) and torch.cuda.memory_allocated() == 0 and min(torch.cuda.mem_get_info()) > 0

made = [
    torch.zeros(2, device="cuda"), torch.zeros(2, device=1), torch.zeros(2).to(0), torch.zeros(2).to(device="cuda:1"),
    torch.zeros(2).cuda(), torch.zeros(2).pin_memory(), torch.zeros(2, pin_memory=True), torch.ones(2).to("cuda", torch.float64),
    torch.nn.Linear(2, 2).to(1).weight, torch.nn.Linear(2, 2).cuda().weight, torch.nn.Linear(2, 2, device="cuda").weight,
    torch.empty_like(torch.zeros(2), device="cuda"),
]
with torch.device("cuda"):
    made.append(torch.rand(2))
torch.set_default_device("cuda")
made.append(torch.rand(2))
torch.set_default_device(None)
assert all(x.device.type == "cpu" for x in made) and made[7].dtype == torch.float64
image = torch.zeros(1, 3, 2, 2).cuda(memory_format=torch.channels_last)
assert image.is_contiguous(memory_format=torch.channels_last)

stream, begin, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
stream.wait_stream(torch.cuda.current_stream())
begin.record()
with torch.cuda.stream(stream):
    made[0].record_stream(stream)
end.record(stream)
torch.cuda.synchronize()
assert stream.query() and 0 <= begin.elapsed_time(end) < 1e6
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()

torch.cuda.manual_seed_all(3)
state = torch.cuda.get_rng_state()
first = torch.rand(4, device="cuda")
torch.cuda.set_rng_state(state)
assert torch.equal(first, torch.rand(4, device=rank)) and torch.equal(first, torch.rand(4, generator=torch.Generator().manual_seed(3)))
seen = []
thread = threading.Thread(target=lambda: seen.append(torch.ones(1, device="cuda")))
thread.start(); thread.join()
assert seen[0].item() == 1
assert [x.tolist() for x in DataLoader(torch.arange(4), batch_size=2, pin_memory=True)] == [[0, 1], [2, 3]]

dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
x = torch.ones(2, device=rank)
dist.all_reduce(x)
dist.barrier(device_ids=[rank])
objects = [None, None]
dist.all_gather_object(objects, rank, group=None)
scaler = torch.amp.GradScaler("cuda")
with torch.autocast("cuda", dtype=torch.bfloat16):
    scaler.scale(torch.nn.Linear(2, 1).cuda()(x).sum()).backward()
sharded = FullyShardedDataParallel(torch.nn.Linear(2, 3).cuda(), device_id=torch.cuda.current_device())
sharded(x).sum().backward()
assert sum(p.numel() for p in sharded.parameters()) == 5  # of 9, padded
print(x.tolist(), objects)
dist.destroy_process_group()
'''


@pytest.mark.filterwarnings("ignore:.*CUDA is not available.*:UserWarning")
@pytest.mark.parametrize("gear", [*GEARS, ["--parallel"]], ids=["fifo", "seed", "parallel"])
def test_what_a_script_finds(gear: list[str], tmp_path: pathlib.Path) -> None:
    before = {name: vars(owner)[name] for owner in (torch.cuda, torch.accelerator) for name in vars(owner) if name[0] != "_"}
    source = ANSWERS
    if gear == ["--parallel"]:  # one generator for all ranks
        source = "\n".join(line for line in source.splitlines() if "assert torch.equal(first" not in line)
    done = launch_text_here(tmp_path, source, "--gpus-on-cpu", "--nproc-per-node=2", *gear)
    assert done.returncode == 0, done.stdout + done.stderr
    assert lines(done.stdout) == ["[2.0, 2.0] [0, 1]"] * 2
    after = {name: vars(owner)[name] for owner in (torch.cuda, torch.accelerator) for name in vars(owner) if name[0] != "_"}
    assert after == before
    if not torch.accelerator.is_available():
        with pytest.raises(RuntimeError, match="none is available"):
            torch.zeros(1).to(0)


@pytest.mark.parametrize(
    "what",
    [
        "torch.cuda.set_device(2)",
        "torch.zeros(1).to('cuda:2')",
        "torch.zeros(1, device=torch.device('cuda', 2))",
        "torch.zeros(1).cuda(2)",
        "torch.nn.Linear(1, 1).to(2)",
        "torch.accelerator.set_device_index(2)",
        "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1), device_ids=[2])",
    ],
)
def test_there_is_no_such_gpu(what: str, tmp_path: pathlib.Path) -> None:
    done = launch_text_here(tmp_path, f"import torch\n{what}\n", "--gpus-on-cpu", "--nproc-per-node=2", "--seed=1")
    text = "RuntimeError: cuda:2: invalid device ordinal, this node has 2 GPUs, which the CPU stands in for"
    assert done.returncode == 1 and f"failed: {text}\n" in done.stderr, done.stdout + done.stderr


SHARDED = """
import os
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("dp", "tp"))
layer = torch.nn.Linear(8, 8).to("cuda")
fully_shard(layer, mesh=mesh["dp"])
layer(torch.ones(2, 8, device="cuda")).sum().backward()
print("ranks", dist.get_world_size())
dist.destroy_process_group()
"""


def test_a_script_that_wants_gpus_is_recorded(tmp_path: pathlib.Path) -> None:
    before = dist.init_process_group
    options = ["--gpus-on-cpu", "--fake", "8", "--rank", "5", "--mesh", "dp=4,tp=2", "--record", "calls.csv"]
    with pytest.warns(UserWarning, match="have tensors with data, and no other rank does"):
        done = launch_text_here(tmp_path, SHARDED, *options)
    assert (done.returncode, done.stdout) == (0, "ranks 8\n"), done.stderr
    assert dist.init_process_group is before and dist.distributed_c10d.init_process_group is before
    calls = [(row["op"], row["group"]) for row in csv.DictReader((tmp_path / "calls.csv").read_text().splitlines())]
    assert ("all_gather_into_tensor", "dp") in calls and ("reduce_scatter_tensor", "dp") in calls
