#!/usr/bin/env python3
"""The way in. Needs Python >= 3.11, pip and a network; makes everything else in .venv and .services.

python3 dev.py demo         four agents: one is killed, one joins, all finish (`demo --backend etcd-v3`, `demo --help`)
python3 dev.py test         every package's tests, with one summary (what follows goes to pytest)
python3 dev.py soak         the tests that need time: outages, chaos, a minute of simulated runs
python3 dev.py smoke        the first case of each of these, as CI does
python3 dev.py tox          the same per Python and package, each with its declared dependencies only
python3 dev.py <session>    any session of noxfile.py: lint, types, docs, wheels, services, ...
python3 dev.py              set up only, and list the sessions
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().with_name("dev")))
from tools import services

if sys.version_info < (3, 11):  # noqa: UP036 - with an older Python this is to be read, not a traceback
    sys.exit(f"rdzv needs Python 3.11 or newer; this is {sys.version.split()[0]}. Try: python3.11 dev.py")

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UV = VENV / "bin" / "uv"
NEED_SERVICES = {
    *("test", "soak", "smoke", "tox", "wheels", "services"),
    *("chaos", "bench", "trips", "scale", "capabilities"),
}

# Most tests wait for something, so more processes than a small machine has cores; each starts servers of its own.
# Tests of one file stay together, with their servers, until a process has none left and takes from others.
PYTEST = ["pytest", "--numprocesses", "6", "--dist", "worksteal"]
# Some search for minutes, and longer beside the others: they do not hang.
SOAK = [*PYTEST, "-o", "faulthandler_timeout=900"]


def main(arguments: list[str]) -> None:
    """Set up, then become the task."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return
    environment = set_up()
    bring_in_services(needed(arguments))
    environment |= services.environment()
    # The tests start thousands of interpreters: each module is compiled once, not once in each of them.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    os.chdir(ROOT)
    command = [str(PYTHON), "-m", *task(arguments)]
    os.execve(command[0], command, environment)  # noqa: S606 - signals and the exit code are then the task's own


def task(arguments: list[str]) -> list[str]:
    """The module to run, and its arguments."""
    if not arguments:
        return ["nox", "--list"]
    name, *rest = arguments
    modules = {
        "demo": ["examples.demo"],
        "test": [*PYTEST, "-m", "not soak"],
        "soak": [*SOAK, "-m", "soak"],
        "smoke": [*SOAK, "--smoke"],
        "tox": ["tox"],
    }
    return [*modules.get(name, ["nox", "--session", name, "--"]), *rest]


def set_up() -> dict[str, str]:
    """Bring .venv up to date with the pyproject.toml files; seconds after the first time.

    Returns:
        The environment for what runs in it.
    """
    environment = os.environ | {
        "VIRTUAL_ENV": str(VENV),
        "UV_PROJECT_ENVIRONMENT": str(VENV),
        "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
    first_time = not UV.exists()
    if first_time:
        print(f"Setting up {VENV} (once)", flush=True)
        # Neither ensurepip nor a system open to pip is needed: the pip that is there installs into .venv.
        venv.create(VENV, clear=True, symlinks=True, with_pip=False)
        run([sys.executable, "-m", "pip", "--python", str(PYTHON), "install", "--quiet", "uv"], dict(os.environ))
    sync = [str(UV), "sync", "--all-packages", "--all-groups"]
    environment |= index_of_pip(environment)
    run(sync if first_time else [*sync, "--quiet"], environment)
    return environment


def needed(arguments: list[str]) -> list[str]:
    """The services that a task talks to: all, or for the demo the one that it is to run on."""
    name, *rest = arguments or [""]
    asked = {argument.removeprefix("--backend=") for argument in rest} if name == "demo" else set()
    return [service for service in services.SERVICES if name in NEED_SERVICES or service in asked]


def bring_in_services(names: list[str]) -> None:
    """Install the servers that a task talks to; what cannot be had here is named, and its tests skip."""
    for name in names:
        try:
            services.SERVICES[name]()
        except services.MissingError as error:
            print(f"Without {name}: {error}", file=sys.stderr, flush=True)


def index_of_pip(environment: dict[str, str]) -> dict[str, str]:
    """Where pip looks for packages, in uv's words: a mirror is set up once."""
    words = {"PIP_INDEX_URL": "UV_DEFAULT_INDEX", "PIP_FIND_LINKS": "UV_FIND_LINKS", "PIP_CERT": "SSL_CERT_FILE"}
    return {
        for_uv: environment[for_pip]
        for for_pip, for_uv in words.items()
        if for_pip in environment and for_uv not in environment
    }


def run(command: list[str], environment: dict[str, str]) -> None:
    """Run one step of the set-up, or end with what it needs."""
    if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
        sys.exit(
            f"This step failed: {' '.join(command)}\n"
            "It needs pip (Debian, Ubuntu: apt install python3-pip) and a package index that can be reached."
        )


if __name__ == "__main__":
    main(sys.argv[1:])
