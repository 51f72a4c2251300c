"""Models that are the same on every rank, in every gear."""

from typing import Any

import torch
from torch import nn


def numbered(module: nn.Module) -> Any:
    """With the same parameters on every rank and in every run. torch.manual_seed would not do: where all ranks run at once,
    they draw from one generator, in any order."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator) - 0.5)
    return module
