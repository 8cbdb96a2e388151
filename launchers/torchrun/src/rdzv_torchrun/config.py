"""torchrun's parameters, as rdzv takes them."""

from collections.abc import Mapping
from typing import Any, Final

import rdzv
from torch.distributed.elastic.rendezvous import RendezvousParameters

_ANY: Final = "rdzv"
_LEGACY: Final = "etcd"
_QUOTES: Final = ("'", '"')


def our_parameters(params: RendezvousParameters) -> rdzv.RendezvousParameters:
    """The same as parameters of rdzv's.

    Raises:
        RendezvousParameterError: The backend is not named.
    """
    options = _without_quotes(params.config)
    backend = _backend(params.backend, options)
    if backend == _LEGACY and "timeout" in options:
        # torchrun's --rdzv-conf=timeout=... means this there, and nothing for any other backend.
        options.setdefault("join_timeout", options["timeout"])
    return rdzv.RendezvousParameters(
        backend,
        params.endpoint,
        params.run_id,
        params.min_nodes,
        params.max_nodes,
        params.local_addr,
        **options,
    )


def _backend(name: str, options: dict[str, Any]) -> str:
    """The name that rdzv has for a backend; takes it out of `options` where it stands there."""
    if name == _ANY:
        if not (chosen := options.pop("plugin", None)):
            raise rdzv.RendezvousParameterError(
                f"--rdzv-backend={_ANY} needs the backend's name: --rdzv-conf=plugin=NAME. "
                f"Installed: {', '.join(rdzv.installed_backends()) or 'none'}."
            )
        return str(chosen)
    return name if name in rdzv.installed_backends() else name.removeprefix("rdzv-")


def _without_quotes(config: Mapping[str, Any]) -> dict[str, Any]:
    """Take off the quotes that no shell took off: around the whole configuration, and around each value.

    torch splits the text at its commas, so those around the whole are at the first name and at the last value. What it
    adds itself is not a text.
    """
    options = dict(config)
    texts = [name for name, value in options.items() if isinstance(value, str)]
    quote = texts[0][0] if texts else ""
    if quote in _QUOTES and options[texts[-1]].endswith(quote):
        options[texts[-1]] = options[texts[-1]].removesuffix(quote)
        options[texts[0][1:]] = options.pop(texts[0])
    return {name: _without_pair(value) for name, value in options.items()}


def _without_pair(value: Any) -> Any:
    quoted = isinstance(value, str) and len(value) > 1 and value[0] in _QUOTES and value[-1] == value[0]
    return value[1:-1] if quoted else value
