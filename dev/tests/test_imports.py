"""Which module imports which: who may import whom, what is public, and none waits for one that waits for it."""

import ast
import re
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE, ENGINE = ROOT / "core" / "src", ROOT / "engine" / "src"
FOUNDATIONS = {"rdzv_core": CORE, "rdzv": ENGINE}
"""What the other packages stand on."""

NETWORK = {"rdzv_core", "rdzv_transport"}
MAY_IMPORT = {
    "rdzv_core": set(),
    "rdzv": {"rdzv_core"},
    "rdzv_transport": {"rdzv_core"},
    "rdzv_sqlite": {"rdzv_core"},
    "rdzv_consul": NETWORK,
    "rdzv_etcd_v3": NETWORK,
    "rdzv_zookeeper": NETWORK,
    # PyTorch's own names: a store of a round, a handler, a store of etcd.
    "rdzv_c10d": {*NETWORK, "rdzv"},
    "rdzv_etcd_v2": {*NETWORK, "rdzv"},
    "rdzv_cli": {"rdzv_core", "rdzv"},
    "rdzv_conformance": {"rdzv_core", "rdzv"},
    "rdzv_torchrun": {*NETWORK, "rdzv"},
    # A third party's.
    "rdzv_directory": {"rdzv_core"},
}
"""Users import rdzv, authors rdzv_core: what each package may import of the others."""
SOURCES = sorted(path for pattern in ("*/src", "*/*/src") for path in ROOT.glob(pattern))
SIBLINGS = [path for path in SOURCES if path not in FOUNDATIONS.values()]
PACKAGES = [*SOURCES, ROOT / "engine" / "tests", ROOT / "dev" / "bench", ROOT / "dev" / "scale"]


def public_modules() -> set[str]:
    """The modules of rdzv and rdzv_core that their API pages name."""
    pages = "".join((ROOT / "docs" / name).read_text() for name in ("api.md", "api-authors.md"))
    return set(re.findall(r"^\| `(rdzv[\w.]*)` \|", pages, re.M))


def public_names(module: str) -> set[str]:
    """What a module of rdzv or rdzv_core lists in ``__all__``."""
    parts = module.split(".")
    path = FOUNDATIONS[parts[0]].joinpath(*parts)
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "__all__" for to in node.targets):
            return set(ast.literal_eval(node.value))
    return set()


def imports_of_foundations(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Every module of rdzv or rdzv_core that is imported, and the name that is taken from it."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and node.level == 0
            and (node.module or "").partition(".")[0] in FOUNDATIONS
        ):
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.partition(".")[0] in FOUNDATIONS)


def uses_of_foundations(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that are taken from ``rdzv`` or ``rdzv_core`` by a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in FOUNDATIONS:
            yield node.value.id, node.attr


def private_names(tree: ast.AST) -> set[str]:
    """The private attributes, methods and functions that a module defines."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def private_names_of_others(tree: ast.AST) -> Iterator[str]:
    """The private names that a module asks of an object other than its own, where it does not define them itself."""
    own = private_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr not in own:
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "other")
            if not is_own and not ast.unparse(node.value).startswith("super("):
                yield node.attr


def test_the_page_names_every_module_that_has_public_names() -> None:
    modules = [*FOUNDATIONS]
    for package, source in FOUNDATIONS.items():
        modules += [f"{package}.{path.stem}" for path in (source / package).glob("[!_]*.py")]
    assert public_modules() == {module for module in modules if public_names(module)}


@pytest.mark.parametrize(
    "module",
    [path for source in SIBLINGS for path in sorted(source.rglob("*.py"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_a_sibling_imports_what_is_public(module: Path) -> None:
    tree = ast.parse(module.read_text())
    public = public_modules()
    private = [
        f"{name} of {core}" if name else core
        for core, name in imports_of_foundations(tree)
        if core not in public or (name is not None and name not in public_names(core))
    ]
    private += [
        f"{core}.{name}"
        for core, name in uses_of_foundations(tree)
        if name not in public_names(core) and name != "__version__"
    ]
    assert private == []


@pytest.mark.parametrize("source", SIBLINGS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_sibling_does_not_reach_inside(source: Path) -> None:
    """No types are known here: whatever bears a private name of rdzv's or rdzv_core's is taken for theirs."""
    modules = [path for source in FOUNDATIONS.values() for path in source.rglob("*.py")]
    names = set().union(*(private_names(ast.parse(path.read_text())) for path in modules))
    reached = {
        f"{path.relative_to(source)}: {name}"
        for path in source.rglob("*.py")
        for name in private_names_of_others(ast.parse(path.read_text()))
        if name in names
    }
    assert reached == set()


def imported_packages(tree: ast.AST) -> Iterator[str]:
    """The packages that a module imports anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module).partition(".")[0]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_who_imports_whom(source: Path) -> None:
    project = tomllib.loads((source.parent / "pyproject.toml").read_text())["project"]
    package = project["name"].replace("-", "_")
    declared = {re.split(r"[^\w-]", need)[0].replace("-", "_") for need in project["dependencies"]}
    assert declared & MAY_IMPORT.keys() == MAY_IMPORT[package]
    for module in sorted(source.rglob("*.py")):
        # `python -m rdzv` is the command where it is installed.
        allowed = {package, *MAY_IMPORT[package], *({"rdzv_cli"} if module.name == "__main__.py" else ())}
        assert {*imported_packages(ast.parse(module.read_text()))} & MAY_IMPORT.keys() <= allowed, module


def name_of(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_with(body: list[ast.stmt], package: str) -> Iterator[str]:
    """What these statements import as they run, or for their types, without what a function imports later."""
    for node in body:
        if isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.If):
            yield from imported_with([*node.body, *node.orelse], package)
        elif isinstance(node, (ast.With, ast.ClassDef)):
            yield from imported_with(node.body, package)
        elif isinstance(node, ast.Try):
            for part in (node.body, node.orelse, node.finalbody, *(handler.body for handler in node.handlers)):
                yield from imported_with(part, package)


def dependencies(source: Path) -> dict[str, set[str]]:
    """Of each module below `source`, which others of them it needs in order to be imported."""
    files = {name_of(path, source): path for path in sorted(source.rglob("*.py"))}
    found = {}
    for name, path in files.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        wanted = imported_with(ast.parse(path.read_text()).body, package)
        # `from a import b` needs the module a.b if there is one, else a.
        found[name] = {one if one in files else one.rpartition(".")[0] for one in wanted} & files.keys() - {name}
    return found


@pytest.mark.parametrize("source", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_modules_wait_for_each_other(source: Path) -> None:
    try:
        TopologicalSorter(dependencies(source)).prepare()
    except CycleError as error:
        pytest.fail(f"These import each other: {' -> '.join(error.args[1])}")
