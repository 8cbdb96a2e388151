#!/usr/bin/env python3
"""Rehearses a release: all but the upload, which .github/workflows/release.yml does for a tag.

python3 dev.py release --dry-run              checks, builds twice, and prints what would be published
python3 dev.py release --dry-run --keep dist  the same, and keeps the files: dist/PACKAGE/FILE

Refused are a tree that is not committed, versions and requirements of the packages that do not fit each other, two
builds of one commit that differ, and metadata that an index would not take. What is still to be decided before the
upload (a date in a changelog, the address of the repository) is listed; with `--tag` it is refused as well.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = ("*", "plugins/*", "launchers/*")

UNKNOWN_ADDRESS: Final = re.compile(r"https://[\w.-]*\.example(?=/|$)")
"""A host under a name that is kept for examples (RFC 2606): the repository has no known address yet."""

UPLOAD: Final = """\
The upload is left to .github/workflows/release.yml: it publishes a tag by trusted publishing, so that no person and no
machine keeps a token. Rehearse it with `python3 dev.py release --dry-run`, then push the tag:
git tag v{version} && git push origin v{version}"""


class ReleaseError(Exception):
    """What stands against a release; the message says what to do."""


@dataclass(frozen=True)
class Package:
    """One distribution, as its pyproject.toml says."""

    folder: Path
    project: Mapping[str, Any]
    """The table `project`."""
    groups: Mapping[str, Sequence[str]]
    """What its development asks for."""

    @property
    def name(self) -> str:
        """As an index knows it."""
        return str(self.project["name"])

    @property
    def version(self) -> str:
        """As it stands there."""
        return str(self.project["version"])

    def requirements(self) -> Iterator[Requirement]:
        """What the package, its extras and its development ask for."""
        extras: Mapping[str, Sequence[str]] = self.project.get("optional-dependencies", {})
        for needs in (self.project.get("dependencies", []), *extras.values(), *self.groups.values()):
            yield from map(Requirement, needs)


def read_packages(root: Path) -> list[Package]:
    """Every distribution of a tree, by its name."""
    packages = []
    for path in (path for folder in FOLDERS for path in root.glob(f"{folder}/pyproject.toml")):
        table = tomllib.loads(path.read_text())
        packages.append(Package(path.parent, table["project"], table.get("dependency-groups", {})))
    return sorted(packages, key=lambda package: package.name)


# Before anything is built.


def contradictions(packages: Sequence[Package]) -> Iterator[str]:
    """Versions that differ, and requirements that the package of this tree does not meet."""
    versions = {package.name: package.version for package in packages}
    if len(set(versions.values())) > 1:
        yield f"The versions differ: {', '.join(f'{name} {version}' for name, version in versions.items())}."
    for package in packages:
        for need in package.requirements():
            version = versions.get(canonicalize_name(need.name))
            if version and not need.specifier.contains(version, prereleases=True):
                yield f"{package.name} asks for {need}, but {need.name} is {version} here."


def undecided(root: Path, packages: Sequence[Package]) -> Iterator[str]:
    """What is to be written down before an upload."""
    changelogs: dict[str, list[str]] = {}
    for package in packages:
        path = package.folder / "CHANGELOG.md"
        changelogs.setdefault(missing_entry(path.read_text(), package.version), []).append(str(path.relative_to(root)))
    yield from (f"{missing} In {', '.join(sorted(paths))}." for missing, paths in changelogs.items() if missing)
    urls = [url for package in packages for url in package.project.get("urls", {}).values()]
    for address in sorted({found[0] for url in urls if (found := UNKNOWN_ADDRESS.match(url))}):
        yield (
            f"The repository's address is not known: {address} stands for it. Write it down with "
            f"`git grep -l {address} | xargs sed -i s,{address},https://github.com/OWNER/NAME,g`."
        )


def missing_entry(changelog: str, version: str) -> str:
    """What a changelog lacks for a version to be published; nothing if it is ready."""
    headings = re.findall(r"^## +(.+?) *$", changelog, re.MULTILINE)
    if any(re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading) for heading in headings[:1]):
        return ""
    first = f"'## {headings[0]}' comes first" if headings else "There is no entry"
    return f"{first}; a release takes '## {version} (YYYY-MM-DD)', with its day."


def git(root: Path, *command: str) -> str:
    """What git answers."""
    program = shutil.which("git") or "git"
    done = subprocess.run([program, "-C", str(root), *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"git {command[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


# Building.


def build_twice(root: Path, folder: Path) -> list[Path]:
    """Build a commit's sdists and wheels, and once more elsewhere and by another user's habits.

    Returns:
        The files, by their names.

    Raises:
        ReleaseError: The builds differ, or one failed.
    """
    epoch = git(root, "log", "-1", "--format=%ct")
    archive = folder / "commit.tar"
    git(root, "archive", f"--output={archive}", "HEAD")
    first = build(archive, folder / "once", epoch, umask=0o022)
    again = build(archive, folder / "once more" / "elsewhere", epoch, umask=0o077)
    if differing := sorted(set(hashes(first).items()) ^ set(hashes(again).items())):
        names = sorted({name for name, _ in differing})
        raise ReleaseError(f"Two builds of this commit differ: {', '.join(names)}. `diffoscope` shows where.")
    return first


def build(archive: Path, folder: Path, epoch: str, umask: int) -> list[Path]:
    """Unpack a commit into a new folder, and build all of its packages there."""
    folder.mkdir(parents=True)
    subprocess.run([shutil.which("tar") or "tar", "-xf", str(archive), "-C", str(folder)], umask=umask, check=True)
    dist = folder / "dist"
    # The build backend is the one of this environment, so that nothing is fetched and both builds have the same one.
    command = ["-m", "uv", "build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--all-packages"]
    done = subprocess.run(
        [sys.executable, *command, "--out-dir", str(dist)],
        cwd=folder,
        env=os.environ | {"SOURCE_DATE_EPOCH": epoch},
        umask=umask,
        check=False,
    )
    if done.returncode:
        raise ReleaseError("The build failed; its output stands above.")
    return sorted([*dist.glob("*.whl"), *dist.glob("*.tar.gz")])


def hashes(files: Sequence[Path]) -> dict[str, str]:
    """The SHA-256 of each file, by its name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def package_of(file: Path) -> str:
    """The distribution that a file belongs to."""
    parse = parse_wheel_filename if file.suffix == ".whl" else parse_sdist_filename
    return parse(file.name)[0]


def check_files(files: Sequence[Path], packages: Sequence[Package]) -> None:
    """Refuse files of which some are missing, or which an index would not take."""
    built = [package_of(file) for file in files]
    if missing := [package.name for package in packages if built.count(package.name) != len(("wheel", "sdist"))]:
        raise ReleaseError(f"These have not a wheel and an sdist each: {', '.join(missing)}.")
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"An index would not take this:\n{done.stdout}{done.stderr}")


def keep_files(files: Sequence[Path], folder: Path) -> None:
    """Copy the files into a folder for each package, as the upload takes them."""
    for file in files:
        target = folder / package_of(file)
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)


# The command.


def check_tree(root: Path, packages: Sequence[Package], tag: str | None) -> list[str]:
    """Refuse a tree that cannot be released, or not under this tag.

    Returns:
        What is still undecided.
    """
    if changed := git(root, "status", "--porcelain"):
        raise ReleaseError(f"A release is of a commit, and this is not committed:\n{changed}")
    if wrong := [*contradictions(packages)]:
        raise ReleaseError("\n".join(wrong))
    version = packages[0].version
    if tag not in (None, f"v{version}"):
        raise ReleaseError(f"The tag is {tag}, but the packages have the version {version}: their tag is v{version}.")
    todo = [*undecided(root, packages)]
    if tag and todo:
        raise ReleaseError("\n".join(todo))
    return todo


def rehearse(root: Path, tag: str | None, keep: Path | None) -> Iterator[str]:
    """Do all but the upload.

    Yields:
        What is to be printed.

    Raises:
        ReleaseError: There cannot be a release.
    """
    packages = read_packages(root)
    todo = check_tree(root, packages, tag)
    with tempfile.TemporaryDirectory(prefix="rdzv-release-") as folder:
        files = build_twice(root, Path(folder))
        check_files(files, packages)
        yield from (f"{digest}  {name}" for name, digest in hashes(files).items())
        if keep:
            keep_files(files, root / keep)
    commit = git(root, "rev-parse", "--short", "HEAD")
    yield (
        f"{len(files)} files of {len(packages)} packages would be published: version {packages[0].version}, commit "
        f"{commit}. Two builds had these bytes, and an index would take their metadata."
    )
    if todo:
        yield "\n- ".join(("Before the upload:", *todo))


def main(arguments: Sequence[str], root: Path = ROOT) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python3 dev.py release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true", help="do all but the upload (without it, nothing is done)")
    parser.add_argument("--tag", help="the tag to publish, which the version must fit; nothing may be undecided then")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the files stay, one folder for each package")
    given = parser.parse_args(arguments)
    if not given.dry_run:
        sys.exit(UPLOAD.format(version=read_packages(root)[0].version))
    try:
        for line in rehearse(root, given.tag, given.keep):
            print(line, flush=True)
    except ReleaseError as error:
        sys.exit(f"No release: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
