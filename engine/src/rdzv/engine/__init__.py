"""The rendezvous itself, private to the engine: `DynamicRendezvousHandler` and what drives it.

From top to bottom: `handler` is the API, `runner` runs coroutines on threads, `watch`, `keep_alive`, `join`, `leave`
and `leader` are the coroutines, `node` is what one node knows (`registration` its own record, `run_view` the run),
`rules` decide, `garbage` is what may go, `records` are what is written down.
`register_adapter` and `heartbeats` adapt poorer backends, so that one protocol serves all.
"""
