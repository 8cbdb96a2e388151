"""Count primes together, step by step: a job whose every step is an all-reduce over the round's store.

    rdzv run --backend sqlite --run-id primes --nnodes 2:4 -- python examples/allreduce.py --checkpoint primes.json

Every node counts its share of a block of numbers, then all add up what each found. When a node dies,
leaves or joins, ``rdzv run`` starts this program anew in the next round, with another rank or world size;
it goes on from the last step that was completed. A step lost or counted twice would make the sum wrong.
"""

import argparse
import json
import os
import time
from pathlib import Path

import rdzv

BLOCK = 500
"""How many numbers one step looks at."""


def main() -> None:
    """Run the steps that are left."""
    arguments = parse_arguments()
    world = rdzv.current()
    first, total = agree_on_start(world, arguments.checkpoint)
    print(f"round {world.round}: rank {world.rank} of {world.world_size}, from step {first}", flush=True)
    for step in range(first, arguments.steps):
        share = range(step * BLOCK, (step + 1) * BLOCK)[world.rank :: world.world_size]
        total += all_reduce_sum(world, step, sum(map(is_prime, share)))
        if world.rank == 0:
            save(arguments.checkpoint, step + 1, total)
            if (step + 1) % 25 == 0:
                print(f"step {step + 1}: {total} primes below {(step + 1) * BLOCK}", flush=True)
        time.sleep(arguments.pace)
    print(f"done: {total} primes below {arguments.steps * BLOCK}", flush=True)


def all_reduce_sum(world: rdzv.World, step: int, part: int) -> int:
    """The `part` of all, added up: each writes its own and reads all, waiting for those that are not there yet."""
    world.store.set(f"{step}/{world.rank}", str(part))
    parts = world.store.multi_get([f"{step}/{rank}" for rank in range(world.world_size)])
    # All have written this step, so all have read the one before.
    world.store.delete_key(f"{step - 1}/{world.rank}")
    return sum(map(int, parts))


def agree_on_start(world: rdzv.World, checkpoint: Path) -> tuple[int, int]:
    """The first step to do and the sum before it: what rank 0 finds saved, for all."""
    if world.rank == 0:
        world.store.set("start", checkpoint.read_bytes() if checkpoint.exists() else b"[0, 0]")
    first, total = json.loads(world.store.get("start"))
    return first, total


def save(checkpoint: Path, step: int, total: int) -> None:
    """Write the checkpoint, whole or not at all."""
    draft = checkpoint.with_suffix(".draft")
    draft.write_text(json.dumps([step, total]))
    os.replace(draft, checkpoint)


def is_prime(number: int) -> bool:
    """Whether nothing but 1 and itself divides `number`."""
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--checkpoint", type=Path, required=True, help="file that outlives a round; all nodes see it")
    parser.add_argument("--steps", type=int, default=200, help="how many steps the job has (default: 200)")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to rest after each step (default: 0)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
