"""The rendezvous itself, private to the core: `DynamicRendezvousHandler` and what drives it.

From top to bottom: `handler` is the face, `driver` runs lanes on threads, `member` and `leader`
are the lanes, `node` is what one node knows, `rules` decide, `records` are what is written down.
`register` and `beats` lift poorer backends, so that one protocol serves all.
"""
