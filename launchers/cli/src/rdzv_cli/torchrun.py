"""What `rdzv run` has in the place of torchrun's options, for those who give these to it."""

from typing import Final

IN_PLACE_OF: Final = {
    "--rdzv-backend": "it is --backend here",
    "--rdzv-endpoint": "it is --endpoint here",
    "--rdzv-id": "it is --run-id here",
    "--rdzv-conf": "each NAME=VALUE is an --option of its own here",
    "--shutdown-timeout": "it is --grace here",
    "--log-line-prefix-template": "it is --prefix here",
    "--module": "give -- python -m MODULE",
    "--run-path": "give -- python FILE",
    "--no-python": "leave it out: CMD is any program",
    "--node-rank": "leave it out: each world gives its nodes their ranks",
    "--master-addr": "leave it out: each world has its own MASTER_ADDR",
    "--role": "leave it out: a run has one role",
    "--monitor-interval": "leave it out: an agent knows at once when a process ends",
    "--start-method": "leave it out: CMD is any program",
    "--event-log-handler": "leave it out: hooks get what happens",
}
"""By their names with hyphens; how each answer goes on after "there is no option NAME"."""
