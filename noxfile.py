"""The tasks only: what to do with the code. The matrix is tox.ini's; neither repeats the other.

Sessions use the environment that dev.py made; ``python3 dev.py lint`` is the whole way to run one.
"""

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import nox
from nox.project import dependency_groups, load_toml

ROOT = Path(__file__).parent
SAMPLE = ROOT / "examples" / "third-party"
FOLDERS = ("*", "plugins/*", "launchers/*")
PACKAGES = sorted(path.parent for folder in FOLDERS for path in ROOT.glob(f"{folder}/pyproject.toml"))

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
    session.run("python", "dev/tools/words.py")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of everything, strictly."""
    # One run per package, inside it: test files of different packages have the same names. What they import is read
    # once, since they have one cache.
    session.env["MYPY_CACHE_DIR"] = str(ROOT / ".mypy_cache")
    mypy = ("mypy", "--config-file", str(ROOT / "pyproject.toml"))
    for package in (*PACKAGES, SAMPLE):
        with session.chdir(package):
            run_module(session, *mypy, "src", "tests", MYPYPATH=f"src:{ROOT}")
    with session.chdir(ROOT / "dev"):
        run_module(session, *mypy, "bench", "scale", "tools", "tests", MYPYPATH=f".:{ROOT}:{ROOT / 'engine' / 'tests'}")
    scripts = ["dev.py", "noxfile.py", "examples", "docs"]
    run_module(session, "mypy", "--exclude", str(SAMPLE.relative_to(ROOT)), *scripts, MYPYPATH="dev")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into docs/_build/html; a warning is an error."""
    run_module(session, "sphinx", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html", *session.posargs)


@nox.session
def terminal(session: nox.Session) -> None:
    """Record the demo anew, as the picture with which the README begins: docs/terminal.svg."""
    session.run(sys.executable, "dev/tools/terminal.py")


@nox.session
def bench(session: nox.Session) -> None:
    """Compare rdzv with its peers, side by side: `bench [--quick]`, `bench --help`."""
    folder = ROOT / ".nox" / "bench-peers"
    python = str(folder / "bin" / "python")
    run_module(session, "uv", "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder))
    # NVIDIA's wheels are for a newer glibc than many systems have; what is used of them is Python alone.
    install = ["uv", "pip", "install", "--quiet", "--python", python, "--python-platform", "x86_64-manylinux_2_39"]
    run_module(session, *install, f"torch=={version('torch')}", "-r", "dev/bench/nodes/requirements.txt")
    run_module(session, "bench", "--peers", python, *session.posargs, PYTHONPATH=str(ROOT / "dev"))


@nox.session
def trips(session: nox.Session) -> None:
    """Count the round trips of a world anew, on all backends or on those named, and write dev/bench/trips.toml."""
    run_module(session, "bench.counted", *session.posargs, PYTHONPATH=str(ROOT / "dev"))


@nox.session
def scale(session: nox.Session) -> None:
    """Run thousands of nodes of the real engine on one real service: `scale --nodes 10000`, `scale --help`."""
    run_module(session, "scale", *session.posargs, PYTHONPATH=str(ROOT / "dev"))


@nox.session
def simulate(session: nox.Session) -> None:
    """Look for violations in simulated runs, on all cores: `simulate --minutes 60`."""
    run_module(session, "simulator", *session.posargs, PYTHONPATH=str(ROOT / "engine" / "tests"))


@nox.session
def fuzz(session: nox.Session) -> None:
    """Send what rdzv has not written to every decoder and client, and into real runs: `fuzz --minutes 60`."""
    session.run(sys.executable, "dev/tools/fuzz.py", *session.posargs)


@nox.session
def chaos(session: nox.Session) -> None:
    """Send faults to real agents and a real service, and check what they saw: `chaos --backend etcd-v3 --minutes
    10`."""
    # `--bug NAME` puts a bug of the simulator back into the engine, which is then found.
    session.run(
        sys.executable, "dev/tools/chaos.py", *session.posargs, env={"PYTHONPATH": str(ROOT / "engine" / "tests")}
    )


@nox.session
def services(session: nox.Session) -> None:
    """Start a real service around a command that finds it in RDZV_*: `services etcd-v3 rdzv status`."""
    from rdzv_conformance.servers import SERVERS

    backend, *command = session.posargs or [""]
    if backend not in SERVERS or not command:
        session.error(f"Usage: services BACKEND COMMAND..., where BACKEND is one of: {', '.join(SERVERS)}")
    with SERVERS[backend]() as server:
        here = {"RDZV_BACKEND": backend, "RDZV_ENDPOINT": server.get_endpoint()}
        session.log(shlex.join(f"{name}={value}" for name, value in here.items()))
        session.run(*command, env=here)


def try_sdist(sdist: Path, python: str, options: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Try an unpacked sdist by itself, as a packager has it: all of its tests are imported, the quick ones run."""
    # What takes minutes is tried in the workspace.
    quick = [f"test_{name}.py" for name in ("doctor", "layers", "plugin", "plugins", "readme", "rendezvous")]
    quick += ["test_conformance.py"] if sdist.name.startswith("rdzv_sqlite") else []
    command = [python, "-m", "pytest", "-W", "error", "-k", " or ".join(quick), *options]
    return subprocess.run(command, cwd=sdist, capture_output=True, text=True, check=False)


@nox.session
def wheels(session: nox.Session) -> None:
    """Build wheels and sdists into dist/, install the wheels in an empty environment, run the sdists' quick tests."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="rdzv-wheels-") as folder:
        suite, environment = (Path(folder, name) for name in ("suite", "environment"))
        python = str(environment / "bin" / "python")
        run_module(session, "uv", "build", "--quiet", "--all-packages", "--out-dir", str(dist))
        run_module(session, "uv", "venv", "--quiet", "--python", sys.executable, str(environment))
        # Our wheels go by path: by name an index could answer with something else.
        needs = {need for path in PACKAGES for need in dependency_groups(load_toml(path / "pyproject.toml"), "test")}
        run_module(session, "uv", "pip", "install", "--python", python, *map(str, dist.glob("*.whl")), *sorted(needs))
        suite.mkdir()
        for sdist in dist.glob("*.tar.gz"):
            session.run("tar", "-xzf", str(sdist), "-C", str(suite))
        failed = 0
        # They mostly wait, so some are tried side by side.
        with ThreadPoolExecutor(max_workers=3) as pool:
            for run in pool.map(lambda sdist: try_sdist(sdist, python, session.posargs), sorted(suite.iterdir())):
                print(run.stdout, run.stderr, flush=True)
                failed += bool(run.returncode)
        if failed:
            session.error(f"{failed} sdists do not pass their own tests.")


@nox.session
def release(session: nox.Session) -> None:
    """Do all of a release but the upload, and say what would be published: `release --dry-run`, `release --help`."""
    session.run(sys.executable, "dev/tools/release.py", *session.posargs)


@nox.session
def audit(session: nox.Session) -> None:
    """Ask the database of known vulnerabilities about everything that is installed in .venv."""
    session.run(sys.executable, "dev/tools/audit.py", *session.posargs)


def check_outcomes(session: nox.Session, report: Path) -> None:
    """Check that each test of the suite said what it says of the sample's two backends."""
    backends = json.loads(report.read_text())["backends"]
    found = {backend["name"]: {test["outcome"] for test in backend["tests"].values()} for backend in backends}
    if found != {"directory": {"passed", "unsupported"}, "file": {"passed"}}:
        session.error(f"The suite says something else of the sample: {found}")


@nox.session
def sample(session: nox.Session) -> None:
    """Install the sample backend of a third party beside the built wheels, outside of all this, and try it there."""
    with tempfile.TemporaryDirectory(prefix="rdzv-sample-") as folder:
        dist, source, environment, shared = (Path(folder, name) for name in ("dist", "source", "environment", "shared"))
        python = str(environment / "bin" / "python")
        shutil.copytree(SAMPLE, source, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        for place in (ROOT / "core", ROOT / "engine", ROOT / "launchers" / "cli", ROOT / "conformance", source):
            run_module(session, "uv", "build", "--quiet", "--wheel", "--out-dir", str(dist), str(place))
        run_module(session, "uv", "venv", "--quiet", "--python", sys.executable, str(environment))
        run_module(session, "uv", "pip", "install", "--python", python, *map(str, dist.glob("*.whl")))
        session.chdir(source)
        report = Path(folder, "report.json")
        session.run(python, "-m", "pytest", "-W", "error", f"--rdzv-report={report}", *session.posargs)
        if not session.posargs:
            check_outcomes(session, report)
        shared.mkdir()
        rdzv = [python, "-m", "rdzv"]
        session.run(*rdzv, "backends", "directory")
        run = ["run", "--backend", "directory", "--endpoint", str(shared), "--run-id", "sample", "--nnodes", "1"]
        job = [str(ROOT / "examples" / "allreduce.py"), "--checkpoint", str(shared / "primes.json"), "--steps", "3"]
        session.run(*rdzv, *run, "--", python, *job)


@nox.session
def capabilities(session: nox.Session) -> None:
    """Run the suite on all plugins, or on those named, and write docs/capabilities.md from what it reports."""
    plugins = {path.parents[1].name: path.parents[1] for path in ROOT.glob("plugins/*/tests/test_conformance.py")}
    reports = {name: ROOT / ".nox" / "reports" / f"{name}.json" for name in plugins}
    if unknown := set(session.posargs) - set(plugins):
        session.error(f"No plugin is named {', '.join(sorted(unknown))}; there are {', '.join(sorted(plugins))}")
    for name in session.posargs or plugins:
        tests = str(plugins[name] / "tests" / "test_conformance.py")
        # Where CI is set, a service that is missing is a failure.
        # A report with a failure is of no use: nothing is run again.
        plain = ("-p", "no:tools.unstable")
        run_module(session, "pytest", "--quiet", *plain, f"--rdzv-report={reports[name]}", tests, CI="true")
    session.run(sys.executable, "dev/tools/capabilities.py", *map(str, reports.values()))


@nox.session
def pictures(session: nox.Session) -> None:
    """Write the pictures of docs/architecture.md from the packages, the table of states and the steps of a round."""
    session.run(sys.executable, "dev/tools/pictures.py")


@nox.session(name="torch-names")
def torch_names(session: nox.Session) -> None:
    """Name what is new in PyTorch's rendezvous: `torch-names [SITE-PACKAGES]`, a folder that has another torch."""
    session.run(sys.executable, "dev/tools/torch_names.py", *session.posargs)


@nox.session
def mutate(session: nox.Session) -> None:
    """Break the engine in one place at a time; fails if no test notices: `mutate [--changed] [rules.decide]`."""
    session.run(sys.executable, "dev/tools/mutate.py", *session.posargs)
