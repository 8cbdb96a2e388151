"""``rdzv backends``: what is installed, what it can do, which options it takes."""

import argparse

from rdzv.settings import HANDLER_OPTIONS
from rdzv_core.backend import BackendPlugin, Capability, KeyValueBackend
from rdzv_core.errors import RendezvousError
from rdzv_core.options import Option, with_files
from rdzv_core.plugins import installed_backends, load_backend_plugin

from .output import show


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "backends",
        help="show which backends are installed",
        description="Show which backends are installed and what they can do; with a name, also its options.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="a backend, to see its options and capabilities")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Show one backend, or all."""
    if arguments.name:
        _show(arguments.name, load_backend_plugin(arguments.name))
        return 0
    installed = installed_backends()
    if not installed:
        show("No backend is installed. The embedded default comes with: pip install rdzv-sqlite")
    for name, package in sorted(installed.items()):
        try:
            about = load_backend_plugin(name).summary
        except RendezvousError as error:
            about = f"broken: {error}"
        show(f"{name:12} {about} ({package.name} {package.version})")
    return 0


def _show(name: str, plugin: BackendPlugin) -> None:
    show(f"{name}: {plugin.summary}")
    if plugin.default_endpoint is not None:
        show(f"default endpoint: {plugin.describe_endpoint(plugin.default_endpoint) or 'none is needed'}")
    kind = plugin.backend_type
    show("\ncapabilities:")
    if issubclass(kind, KeyValueBackend):
        for capability in Capability:
            has = capability in kind.capabilities
            why = capability.value if has else kind.unsupported.get(capability, "no reason declared")
            show(f"  {'yes' if has else 'no':4} {capability.name.lower():15} {why}")
    else:
        show("  a register backend; rdzv keeps everything in its register")
    _show_options(f"options of {name}", plugin.options)
    _show_options("options of rdzv", HANDLER_OPTIONS)


def _show_options(title: str, options: tuple[Option, ...]) -> None:
    show(f"\n{title}:")
    for option in with_files(options):
        default = "" if option.default is None else f" (default: {option.default})"
        show(f"  {option.name:24} {option.kind:8} {option.help}{default}")
