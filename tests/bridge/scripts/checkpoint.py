"""Saves a sharded model with torch.distributed.checkpoint, spoils it, and loads it again."""

import argparse

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard


class State(Stateful):
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="checkpoint")
arguments = parser.parse_args()
dist.init_process_group("gloo")
torch.manual_seed(0)
model = fully_shard(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
before = {name: p.full_tensor().clone() for name, p in model.named_parameters()}
dcp.save({"app": State(model, optimizer)}, checkpoint_id=arguments.folder)
with torch.no_grad():
    for p in model.parameters():
        p.zero_()
dcp.load({"app": State(model, optimizer)}, checkpoint_id=arguments.folder)
for name, p in model.named_parameters():
    torch.testing.assert_close(p.full_tensor(), before[name])
print(f"rank {dist.get_rank()}: {len(before)} parameters are as they were, {sum(p.detach().sum().item() for p in before.values()):.4f}")
dist.destroy_process_group()
