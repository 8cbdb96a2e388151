"""A plugin is loaded wherever it is installed: at import it asks the machine for nothing that may be missing there."""

import subprocess
import sys

import pytest

HOSTILE = """
import getpass, os, pathlib, socket, sys, tempfile
from importlib.metadata import entry_points

def missing(*arguments, **named):
    raise OSError("it is missing here")

for owner, names in (
    (tempfile, "gettempdir gettempdirb mkdtemp mkstemp NamedTemporaryFile TemporaryFile TemporaryDirectory"),
    (os, "getcwd getlogin uname"),
    (getpass, "getuser"),
    (pathlib.Path, "home cwd"),
    (socket, "gethostname getfqdn getaddrinfo gethostbyname"),
):
    for name in names.split():
        setattr(owner, name, missing)
os.environ.clear()
for entry in entry_points(group=sys.argv[1]):
    if entry.dist.name.startswith("rdzv"):
        print(entry.name, entry.load())
"""


@pytest.mark.parametrize(("group", "least"), [("rdzv", 6), ("torchrun.handlers", 1)])
def test_a_plugin_is_loaded_where_much_is_missing(group: str, least: int) -> None:
    loaded = subprocess.run([sys.executable, "-c", HOSTILE, group], capture_output=True, text=True, check=False)
    assert (loaded.returncode, loaded.stderr) == (0, "")
    assert len(loaded.stdout.splitlines()) >= least
