"""Train a small model with DistributedDataParallel on CPUs, as an elastic job that goes on from its checkpoint.

    torchrun --nnodes=2:3 --nproc-per-node=2 --max-restarts=3 --rdzv-backend=sqlite --rdzv-id=train \\
        examples/train_ddp.py --checkpoint model.pt

torchrun starts this program anew in every world that forms, with other ranks and another size. What makes
it elastic is the checkpoint alone: every process loads it, rank 0 writes it after every step.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

BATCH = 64
"""Samples of one step, which all processes share among them."""


def main() -> None:
    """Train until all steps are done."""
    arguments = parse_arguments()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    layers = torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    first = load(arguments.checkpoint, model, optimizer)
    parallel = DistributedDataParallel(model)
    place = f"rank {rank} of {world_size}"
    print(f"{place}: from step {first}, loss {evaluate(model):.4f}", flush=True)
    for step in range(first, arguments.steps):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        share = slice(rank, None, world_size)
        loss = mse_loss(parallel(inputs[share]), targets[share])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if rank == 0:
            save(arguments.checkpoint, step + 1, model, optimizer)
        time.sleep(arguments.pace)
    print(f"{place}: done, loss {evaluate(model):.4f}", flush=True)
    dist.destroy_process_group()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The samples of one step, the same in every process and in every world."""
    inputs = torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(step))
    return inputs, inputs.prod(dim=1, keepdim=True).sin() + inputs.sum(dim=1, keepdim=True)


@torch.no_grad()
def evaluate(model: torch.nn.Module) -> float:
    """The loss on samples that no step has."""
    inputs, targets = batch(-1)
    return float(mse_loss(model(inputs), targets))


def load(checkpoint: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Go back to where the last world was; returns the step to go on with."""
    if not checkpoint.exists():
        return 0
    saved = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def save(checkpoint: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the checkpoint, whole or not at all."""
    draft = checkpoint.with_suffix(".draft")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, draft)
    os.replace(draft, checkpoint)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--checkpoint", type=Path, required=True, help="file that outlives a world; all nodes see it")
    parser.add_argument("--steps", type=int, default=200, help="how many steps the job has (default: 200)")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to rest after each step (default: 0)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
