"""The rendezvous itself: `DynamicRendezvousHandler` and what drives it.

From top to bottom: `handler` is the face, `driver` runs lanes on threads, `member` and `leader`
are the lanes, `node` is what one node knows, `rules` decide, `records` are what is written down.
`register` and `beats` lift poorer backends, so that one protocol serves all.
"""

from .handler import DynamicRendezvousHandler, create_handler, lift, round_store, run_store

__all__ = ["DynamicRendezvousHandler", "create_handler", "lift", "round_store", "run_store"]
