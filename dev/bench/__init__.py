"""The comparison: rdzv and its peers, side by side, in one run on one machine.

    python3 dev.py bench                  everything; about 105 minutes on two processors, 35 of them for gathering
    python3 dev.py bench --goals          what the table of goals needs: rdzv and NVIDIA gather; about 15 minutes
    python3 dev.py bench --quick          small sizes, once; about five minutes
    python3 dev.py bench --only gather --rows rdzv/sqlite --sizes 2 8

The minutes are estimates, of a quiet machine; what each part took is in the results. Before each measurement it waits
until others use at most 0.2 processors, in all no longer than --patience; where they use more, the results say so.

`rows.py` says who takes part, `measures/` holds one file per thing that is measured, `nodes/` one file per
kind of node. A node is a handler on a thread; the threads are spread over processes (`worker.py`, which gets orders
what to do by `pool.py`), in the same way for every row. `services.py` starts the servers and asks them what it cost;
`lines.py` puts one far away. `counted.py` counts round trips for a test.

Only `nodes/` and `worker.py` run in the peers' environment, which has no rdzv: they import nothing else of this.
"""
