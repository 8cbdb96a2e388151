"""Thousands of nodes of the real engine on one real service, on one machine: what a node costs, and whether it holds.

    python3 dev.py scale                      1,000 nodes on etcd v3
    python3 dev.py scale --nodes 10000        some minutes; each node has a lease and a watch connection of its own
    python3 dev.py scale --floor              bare nodes, which only send and receive what nodes do to gather

A node is its coroutines, the same that run in every program; an event loop performs what they ask for instead of
threads (`runner.py`). Calls go through the backend itself, over connections that all nodes share; watches are the
backend's, too, received whenever their sockets have something (`watches.py`). The nodes gather; one in ten dies without
a word and the others gather again (`node.py`); then the leader dies. For each of that the command prints what it cost
(`meter.py`), and whether there was one world and no false loss (`verdict.py`). What Python and the service take at
least is measured with bare nodes in place of the engine's (`floor.py`).
"""
