#!/usr/bin/env python3
"""Compares the names, parameters and options of a torch's rendezvous with ours, and names what has no answer here.

An answer is a row of docs/from-pytorch.md, with a parameter of the same name at the same place where the row has a
name of rdzv; or a reason in dev/tools/torch_names.toml. torch is read, not imported: one whose libraries cannot be
loaded on this machine will do.

    python3 dev.py torch-names                     the torch of this environment
    python3 dev.py torch-names SITE-PACKAGES       the one in this folder, such as an unpacked wheel
"""

import argparse
import ast
import importlib
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator, Set
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "from-pytorch.md"
ANSWERS: Final = ROOT / "dev" / "tools" / "torch_names.toml"

_RENDEZVOUS: Final = Path("torch", "distributed", "elastic", "rendezvous")
_STORES: Final = Path("torch", "_C", "_distributed_c10d.pyi")
_UNPREFIXED: Final = ("__init__", "api", "registry", "dynamic_rendezvous")
"""Modules whose names the page has without the module's."""
_BASES: Final = ("Store", "PrefixStore")
"""What of torch's stores rdzv has."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Names = dict[str, tuple[str, ...] | None]
"""Dotted names, each with its parameters; None: it is never called."""


@dataclass(frozen=True)
class Torch:
    """What a torch has that is public.

    Attributes:
        version: Which torch.
        names: As on the page, and ``NAME.METHOD`` for each method.
        options: What it reads of a rendezvous's configuration.
    """

    version: str
    names: Names
    options: frozenset[str]


def read_torch(folder: Path) -> Torch:
    """Read the torch in a folder of packages."""
    names: Names = {}
    options: set[str] = set()
    for path in sorted((folder / _RENDEZVOUS).glob("*.py")):
        if path.stem.startswith("_") and path.stem != "__init__":
            continue
        tree = ast.parse(path.read_text())
        prefix = "" if path.stem in _UNPREFIXED else f"{path.stem}."
        names |= {f"{prefix}{name}": parameters for name, parameters in _public(tree).items()}
        options.update(_options(tree))
    stores = _public(ast.parse((folder / _STORES).read_text()))
    names |= {f"torch.distributed.{name}": one for name, one in stores.items() if name.split(".")[0] in _BASES}
    version = re.search(r"__version__ = '([^']+)'", (folder / "torch" / "version.py").read_text())
    return Torch(version[1] if version else "?", names, frozenset(options))


def _public(tree: ast.Module) -> Names:
    lists = (node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
    listed = next((ast.literal_eval(node.value) for node in lists), None)
    names: Names = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and _is_public(node.name, listed):
            names |= _class(node)
        elif isinstance(node, Function) and _is_public(node.name, listed):
            names[node.name] = _parameters(node)
    # What is imported from elsewhere, or assigned.
    return dict.fromkeys(listed or ()) | names


def _class(node: ast.ClassDef) -> Names:
    methods = [one for one in node.body if isinstance(one, Function) and _is_public(one.name, None)]
    made = next((one for one in node.body if isinstance(one, Function) and one.name == "__init__"), None)
    names: Names = {node.name: None}
    if made is not None:
        names[f"{node.name}.__init__"] = _parameters(made, bound=True)
    elif any("dataclass" in ast.unparse(one) for one in node.decorator_list):
        fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
        own = [one for one in fields if not ast.unparse(one.annotation).startswith("ClassVar")]
        names[f"{node.name}.__init__"] = tuple(ast.unparse(one.target) for one in own)
    # An overload with more parameters comes last.
    return names | {f"{node.name}.{one.name}": _method(one) for one in methods}


def _method(node: Function) -> tuple[str, ...] | None:
    decorators = {ast.unparse(one) for one in node.decorator_list}
    return None if "property" in decorators else _parameters(node, bound="staticmethod" not in decorators)


def _parameters(node: Function, *, bound: bool = False) -> tuple[str, ...]:
    found = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
    return (*found[bound:], *(one.arg for one in node.args.kwonlyargs))


def _is_public(name: str, listed: list[str] | None) -> bool:
    return not name.startswith("_") if listed is None else name in listed


def _options(tree: ast.Module) -> Iterator[str]:
    """What is read of ``params``, whichever way."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=of), args=[ast.Constant(value=str(name)), *_]) if _is_params(of):
                yield name
            case ast.Call(args=[ast.Name(id="params"), ast.Constant(value=str(name))]):
                yield f"{name}_timeout"
            case ast.Subscript(value=of, slice=ast.Constant(value=str(name))) if _is_params(of):
                yield name


def _is_params(node: ast.expr) -> bool:
    return ast.unparse(node) in ("params", "params.config")


def rows(page: str) -> Iterator[list[str]]:
    """The rows of the page's tables, each the cells' names as code."""
    for line in page.splitlines():
        if line.startswith("| `"):
            yield line.strip("|").split("|")


def names_in(cell: str) -> list[str]:
    """What stands in a cell as code."""
    return re.findall(r"`([^`]+)`", cell)


def find(name: str) -> Any:
    """What a dotted name stands for; None for an attribute that only instances have.

    Raises:
        LookupError: It stands for nothing.
    """
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part) and part not in inspect.get_annotations(found):
                raise LookupError(name)
            found = getattr(found, part, None)
        return found
    raise LookupError(name)


def unanswered(torch: Torch, page: str, answers: Set[str]) -> list[str]:
    """What a torch has that neither the page nor a reason answers for; a line for each."""
    table = [[names_in(cell) for cell in row] for row in rows(page)]
    ours = {theirs: mine for row in table for theirs, mine in _pairs(row)}
    options = {name for row in table if len(row) == 4 for name in row[0]}
    missing = {f"option {name}": "the page has no such option" for name in torch.options - options}
    for name, parameters in torch.names.items():
        parts = name.split(".")
        tops = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
        if (top := next((one for one in tops if one in ours), None)) is None:
            missing[name] = "the page has no such name"
        elif ours[top] and (lack := _lack(ours[top] + name.removeprefix(top), parameters)):
            missing[name] = lack
    return [f"{name}: {lack}" for name, lack in sorted(missing.items()) if name not in answers]


def read_answers(text: str) -> set[str]:
    """The names that a reason answers for."""
    return {name for names in tomllib.loads(text).values() for name in names}


def _pairs(row: list[list[str]]) -> Iterator[tuple[str, str]]:
    """Each name of a row with ours, which may be none."""
    theirs, mine = row[0], row[1]
    yield from zip(theirs, mine if len(mine) == len(theirs) else [""] * len(theirs), strict=True)


def _lack(name: str, theirs: tuple[str, ...] | None) -> str | None:
    """What ours lacks of theirs."""
    try:
        ours = find(name.removesuffix(".__init__"))
    except LookupError:
        return f"there is no {name}"
    if theirs is None or not callable(ours):
        return None
    parameters = list(inspect.signature(ours).parameters.values())
    # A method of a class, seen from outside.
    named = [one for one in parameters if one.name not in ("self", "cls")]
    if any(one.kind is one.VAR_KEYWORD for one in named):
        return None
    for position, parameter in enumerate(theirs):
        if position < len(named) and named[position].kind is inspect.Parameter.POSITIONAL_ONLY:
            continue
        at = next((at for at, one in enumerate(named) if one.name == parameter), None)
        if at is None:
            return f"{name} has no parameter '{parameter}'"
        if at != position:
            return f"{name} has the parameter '{parameter}' at another place"
    return None


def main() -> None:
    """Compare, and exit with 1 if anything is unanswered."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="a folder of packages that has torch")
    folder = parser.parse_args().folder
    if folder is None:
        if (spec := find_spec("torch")) is None or spec.origin is None:
            sys.exit("There is no torch in this environment; give a folder that has one.")
        folder = Path(spec.origin).parent.parent
    torch = read_torch(folder)
    found = unanswered(torch, PAGE.read_text(), read_answers(ANSWERS.read_text()))
    for line in found:
        print(line)
    counted = f"torch {torch.version}: {len(torch.names)} names and {len(torch.options)} options"
    if found:
        sys.exit(f"{counted}; {len(found)} are new. Answer each in {PAGE.name}, or in {ANSWERS.name} with the reason.")
    print(f"{counted}, all answered for.")


if __name__ == "__main__":
    main()
