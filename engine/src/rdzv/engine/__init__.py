"""The rendezvous itself, private to the engine: `DynamicRendezvousHandler` and what drives it.

From top to bottom: `handler` is the API (`node_view` what a launcher asks, `rounds` what a node gets of a round,
`lifetime` whether it has begun and ended), `runner` runs coroutines on threads, `watch`, `keep_alive`, `register`,
`join`, `leave`, `drain`, `report` and `leader` are the coroutines, `node` is what one node knows (`registration` its
own record, `run_view` the run, `candidacy` its part in elections, `connection` the service, `failures` its loops,
`countdown` what it counts by its clock, `reckoning` how its last round has ended, `events` what is news), `rules`
decide, `garbage` is what may go, `records` are what is written down. The leader has `status_writer`,
`quarantine_ledger` and `collector`; `purge` serves the inspector. `register_adapter` and `heartbeats`, with
`lease_observer`, adapt poorer backends, so that one protocol serves all. Which file to open for a change:
docs/architecture.md.
"""
