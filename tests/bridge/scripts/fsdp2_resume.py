"""FSDP2 from the meta device, with mixed precision and prefetch; a second run loads what the first one kept."""

import argparse
import itertools
import os
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

WIDTH = 12


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(torch.relu(self.wide(self.norm(x))))


def main(mixed: bool, file: pathlib.Path) -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=device)
    with torch.device("meta"):
        net = nn.Sequential(*(Layer() for _ in range(3)))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if mixed else MixedPrecisionPolicy()
    for layer in net:
        fully_shard(layer, mp_policy=policy)
    fully_shard(net, mp_policy=policy)
    for before, after in itertools.pairwise(net):
        before.set_modules_to_forward_prefetch([after])
        after.set_modules_to_backward_prefetch([before])
    net.to_empty(device=device)
    torch.manual_seed(1)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=True)
    if file.exists():
        set_model_state_dict(net, torch.load(file, map_location="cuda") if dist.get_rank() == 0 else {}, options=options)
    else:
        for module in net.modules():
            if isinstance(module, (nn.Linear, nn.LayerNorm)):
                module.reset_parameters()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = []
    for _ in range(4):
        loss = net(torch.ones(2, WIDTH, device=device)).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] and norm.full_tensor() > 0, losses
    kept = get_model_state_dict(net, options=options)
    if dist.get_rank() == 0:
        torch.save(kept, file)
    print(f"rank {dist.get_rank()}: from {losses[0]:.4f} to {losses[-1]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--file", type=pathlib.Path, default="net.pt")
    main(**vars(parser.parse_args()))
