"""The tasks only: what to do with the code. The matrix is tox.ini's; neither repeats the other.

Sessions use the environment that dev.py made; ``python3 dev.py lint`` is the whole way to run one.
"""

import shlex
import sys
import tempfile
from pathlib import Path

import nox
from nox.project import dependency_groups, load_toml

ROOT = Path(__file__).parent
PACKAGES = sorted(path.parent for pattern in ("*/", "plugins/*/") for path in ROOT.glob(f"{pattern}pyproject.toml"))

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "docs", "wheels"]


def run_module(session: nox.Session, *command: str, **variables: str) -> None:
    """Run a tool of this environment, whatever PATH says."""
    session.run(sys.executable, "-m", *command, env=variables)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format; `lint --fix` repairs what a machine can."""
    fix = "--fix" in session.posargs
    run_module(session, "ruff", "check", *(["--fix"] if fix else []), ".")
    run_module(session, "ruff", "format", *([] if fix else ["--check"]), ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of everything, strictly."""
    # One run per package, inside it: test files of different packages have the same names.
    for package in PACKAGES:
        with session.chdir(package):
            run_module(session, "mypy", "--config-file", str(ROOT / "pyproject.toml"), "src", "tests", MYPYPATH="src")
    run_module(session, "mypy", "dev.py", "noxfile.py", "tests", "examples", "bench", "docs")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into docs/_build/html; a warning is an error."""
    run_module(session, "sphinx", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html", *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """Run the main job with four agents, kill one, let another join: `demo [--backend B --endpoint E]`."""
    session.run(sys.executable, "examples/demo.py", *session.posargs)


@nox.session
def gather(session: nox.Session) -> None:
    """Measure how long nodes need to gather and what it costs: `gather [--backend B] [SIZES...]`."""
    session.run(sys.executable, "bench/gather.py", *session.posargs)


@nox.session
def simulate(session: nox.Session) -> None:
    """Look for violations in simulated runs, on all cores: `simulate --minutes 60`."""
    run_module(session, "rdzv_conformance.simulator", *session.posargs)


@nox.session
def services(session: nox.Session) -> None:
    """Start a real service around a command that finds it in RDZV_*: `services etcd-v3 rdzv status`."""
    from rdzv_conformance.servers import EtcdServer

    known = {"etcd-v3": EtcdServer}
    backend, *command = session.posargs or [""]
    if backend not in known or not command:
        session.error(f"Usage: services BACKEND COMMAND..., where BACKEND is one of: {', '.join(known)}")
    with known[backend]() as server:
        here = {"RDZV_BACKEND": backend, "RDZV_ENDPOINT": server.get_endpoint()}
        session.log(shlex.join(f"{name}={value}" for name, value in here.items()))
        session.run(*command, env=here)


@nox.session
def wheels(session: nox.Session) -> None:
    """Build every wheel and sdist, install the wheels into an empty environment, run the sdists' tests there."""
    with tempfile.TemporaryDirectory(prefix="rdzv-wheels-") as folder:
        dist, suite, environment = (Path(folder, name) for name in ("dist", "suite", "environment"))
        python = str(environment / "bin" / "python")
        run_module(session, "uv", "build", "--quiet", "--all-packages", "--out-dir", str(dist))
        run_module(session, "uv", "venv", "--quiet", "--python", sys.executable, str(environment))
        # Our wheels go by path: by name an index could answer with something else.
        needs = {need for path in PACKAGES for need in dependency_groups(load_toml(path / "pyproject.toml"), "test")}
        run_module(session, "uv", "pip", "install", "--python", python, *map(str, dist.glob("*.whl")), *sorted(needs))
        suite.mkdir()
        for sdist in dist.glob("*.tar.gz"):
            session.run("tar", "-xzf", str(sdist), "-C", str(suite))
        (suite / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
        session.chdir(suite)
        session.run(python, "-m", "pytest", *session.posargs, *map(str, sorted(suite.glob("*/tests"))))
