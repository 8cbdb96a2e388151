"""What a fork's child must not free, it does not; its parent does, as ever."""

import subprocess
import sys

PROGRAM = """
import gc, os, sys, warnings
from rdzv_transport.forks import keep_in_children

class Thing:
    def __init__(self, name):
        self.name = name
    def __del__(self):
        print(self.name, "freed", flush=True)

warnings.simplefilter("ignore")
gc.disable()
used, garbage = keep_in_children(Thing("used")), keep_in_children(Thing("garbage"))
garbage.itself = garbage
keep_in_children(Thing("gone"))
del garbage
if not (pid := os.fork()):
    del used
    gc.collect()
    if not (pid := os.fork()):
        gc.collect()
        sys.exit(0)
    sys.exit(os.waitpid(pid, 0)[1])
print("child", os.waitpid(pid, 0)[1], flush=True)
gc.collect()
del used
"""


def test_only_its_own_process_frees_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["gone freed", "child 0", "garbage freed", "used freed"]
