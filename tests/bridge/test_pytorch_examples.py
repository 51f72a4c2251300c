"""Scripts of github.com/pytorch/examples, as they are, on a machine without a GPU. test_gpus.py has scripts of our own of the same kinds."""

import os
import pathlib

import pytest
from launching import launch
from test_gpus import GEARS

FOLDER = pathlib.Path(os.environ.get("RANKLOOM_PYTORCH_EXAMPLES", "/nowhere"))
TUTORIAL = "distributed/ddp-tutorial-series/"
TENSORS = "distributed/tensor_parallelism/"
FSDP2 = "distributed/FSDP2/example.py"
MINGPT = "distributed/minGPT-ddp/mingpt/"
SMALL = [
    *("data_config.truncate=0.001", "data_config.block_size=16", "gpt_config.n_layer=1", "gpt_config.n_head=2", "gpt_config.n_embd=16"),
    *("trainer_config.max_epochs=2", "trainer_config.save_every=1", "trainer_config.data_loader_workers=0"),
]

# Script of github.com/pytorch/examples, the launcher's options, the script's arguments, and a text that the run prints.
EXAMPLES: dict[str, tuple[str, list[str], list[str], str]] = {
    "DDP": ("distributed/ddp/example.py", ["--nproc-per-node=2"], [], "training completed in rank 1!"),
    "DDP by spawn": (TUTORIAL + "multigpu.py", ["--spawn", "--nproc-per-node=2"], ["2", "1"], "[GPU1] Epoch 1 | Batchsize: 32 | Steps: 32"),
    "DDP by torchrun": (TUTORIAL + "multigpu_torchrun.py", ["--nproc-per-node=2"], ["2", "1"], "[GPU1] Epoch 1 | Batchsize: 32 | Steps: 32"),
    "DDP on nodes": (TUTORIAL + "multinode.py", ["--nnodes=2", "--nproc-per-node=2"], ["2", "1"], "[GPU3] Epoch 1 | Batchsize: 32 | Steps: 16"),
    "FSDP2": (FSDP2, ["--nproc-per-node=2"], [], "(output): Linear(in_features=16, out_features=1024, bias=False)"),
    "FSDP2, prefetch": (FSDP2, ["--nproc-per-node=2"], ["--explicit-prefetching"], "(output): Linear(in_features=16"),
    "FSDP2, mixed precision": (FSDP2, ["--nproc-per-node=2"], ["--mixed-precision"], "(output): Linear(in_features=16"),
    "FSDP2, checkpoint's API": (FSDP2, ["--nproc-per-node=2"], ["--dcp-api"], "(output): Linear(in_features=16"),
    "tensor parallel": (TENSORS + "tensor_parallel_example.py", ["--nproc-per-node=4"], [], "Tensor Parallel training completed!"),
    "sequence parallel": (TENSORS + "sequence_parallel_example.py", ["--nproc-per-node=4"], [], "Sequence Parallel training completed!"),
    "DDP by Hydra": (MINGPT + "main.py", ["--nproc-per-node=2"], [f"data_config.path={FOLDER / MINGPT}/data/input.txt", *SMALL], "[RANK1] Epoch 2 |"),
    "FSDP and tensor parallel": (TENSORS + "fsdp_tp_example.py", ["--nproc-per-node=4"], [], "2D training successfully completed!"),
}


@pytest.mark.skipif(not FOLDER.is_dir(), reason="./dev torch-test --examples https://github.com/pytorch/examples runs them")
@pytest.mark.parametrize("gear", GEARS, ids=["fifo", "seed"])
@pytest.mark.parametrize("kind", EXAMPLES)
def test_an_example_of_pytorch_runs_as_it_is(kind: str, gear: list[str], tmp_path: pathlib.Path) -> None:
    script, options, arguments, text = EXAMPLES[kind]
    if kind == "DDP by Hydra":
        for module in ("hydra", "boto3"):
            pytest.importorskip(module)
    runs = 2 if kind in ("DDP by torchrun", "FSDP2", "FSDP2, checkpoint's API") else 1  # the second goes on from the first's snapshot
    for _ in range(runs):
        done = launch(tmp_path, "--gpus-on-cpu", *options, *gear, str(FOLDER / script), *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        assert text in done.stdout + done.stderr, done.stdout + done.stderr
        assert "Exiting" not in done.stdout
