"""A network cut into as many stages as there are ranks, run with GPipe's schedule, and compared with the whole."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

WIDTH = 6


def main(arguments: argparse.Namespace) -> None:
    dist.init_process_group(backend="gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(size)]
    x, target = torch.randn(8, WIDTH), torch.randn(8, WIDTH)
    stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=arguments.chunks, loss_fn=nn.functional.mse_loss)
    losses: list[torch.Tensor] = []
    if rank == 0:
        schedule.step(x)
    elif rank == size - 1:
        out = schedule.step(target=target, losses=losses)
        torch.testing.assert_close(out, nn.Sequential(*layers)(x))
        print(f"loss of {len(losses)} chunks: {torch.stack(losses).mean().item():.5f}")
    else:
        schedule.step()
    gradient = layers[rank][0].weight.grad
    print(f"stage {rank} of {size}: gradient {gradient.norm().item():.5f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--chunks", type=int, default=4)
    main(parser.parse_args())
