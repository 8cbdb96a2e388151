"""What holds for every installed backend: how it is described, and what choosing it brings in."""

import subprocess
import sys
from pathlib import Path

import pytest
import rdzv
import rdzv_core

ROOT = Path(__file__).parents[2]
BACKENDS = rdzv.installed_backends()


@pytest.mark.parametrize("name", BACKENDS)
def test_choosing_one_imports_no_other_and_not_torch(name: str) -> None:
    program = "import rdzv, sys; rdzv.load_backend_plugin(sys.argv[1]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program, name], check=True, capture_output=True, text=True, timeout=60)
    imported = set(done.stdout.split())
    own = BACKENDS[name].name.replace("-", "_")
    others = {package.name.replace("-", "_") for package in BACKENDS.values()} - {own}
    assert own in imported
    assert not imported & (others | {"torch"})


@pytest.mark.parametrize("name", BACKENDS)
def test_every_option_is_in_the_readme(name: str) -> None:
    folder = BACKENDS[name].name.removeprefix("rdzv-")
    readme = (ROOT / "plugins" / folder / "README.md").read_text()
    for option in rdzv.load_backend_plugin(name).options:
        default = "" if option.default is None else f" `{str(option.default).lower()}`"
        assert f"| `{option.name}` | {option.kind} |{default} |" in readme, option.name


@pytest.mark.parametrize("name", BACKENDS)
def test_it_is_described(name: str) -> None:
    plugin = rdzv.load_backend_plugin(name)
    assert plugin.summary
    assert plugin.backend_type.__module__.startswith(BACKENDS[name].name.replace("-", "_"))
    assert issubclass(plugin.backend_type, rdzv.KeyValueBackend)
    supported = plugin.backend_type.capabilities
    assert supported | plugin.backend_type.unsupported.keys() == set(rdzv_core.Capability)
    assert not supported & plugin.backend_type.unsupported.keys()
