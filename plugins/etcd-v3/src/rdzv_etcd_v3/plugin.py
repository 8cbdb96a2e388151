"""The entry point: how the core finds this backend. It imports no client library until it must."""

from typing import TYPE_CHECKING, Any

from rdzv.backend import RendezvousBackend
from rdzv.endpoints import parse_endpoints
from rdzv.errors import RendezvousParameterError
from rdzv.hooks import BackendPlugin, hookimpl
from rdzv.options import parse_options

from .options import OPTIONS

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from rdzv.parameters import RendezvousParameters

    from .backend import EtcdV3Backend

__all__ = ["create_backend", "rdzv_backend"]

_PORT = 2379


@hookimpl
def rdzv_backend() -> BackendPlugin:
    """Describe the backend ``etcd-v3``."""
    return BackendPlugin(
        name="etcd-v3",
        summary="etcd 3.4 or newer, over its JSON gateway",
        options=OPTIONS,
        create_backend=create_backend,
        backend_type=_backend_type,
        example_endpoint="host1:2379,host2:2379",
    )


def create_backend(params: "RendezvousParameters") -> tuple[RendezvousBackend, Any]:
    """Make the backend and the store of a run; does not touch the network.

    Args:
        params: The endpoint is one or more ``host:port``, separated by commas (port 2379 if none is given).

    Raises:
        RendezvousParameterError: An endpoint, an option or a certificate cannot be used.
    """
    from rdzv.store import KeyValueStore

    options = parse_options(params.config, OPTIONS)
    backend = _backend_type()(
        parse_endpoints(params.endpoint, _PORT),
        params.run_id,
        prefix=options["prefix"],
        tls=_tls_context(options),
        server_name=options["server_name"],
        user=options["user"],
        password=options["password"],
        request_timeout=options["request_timeout"],
    )
    return backend, KeyValueStore(backend)


def _backend_type() -> "type[EtcdV3Backend]":
    from .backend import EtcdV3Backend

    return EtcdV3Backend


def _tls_context(options: "Mapping[str, Any]") -> "ssl.SSLContext | None":
    given = [name for name in ("ca_cert", "cert", "key", "server_name") if options[name] is not None]
    if options["protocol"] == "http" and given:
        raise RendezvousParameterError(
            f"The option '{given[0]}' needs TLS, but protocol is http. Set protocol=https, or leave one of them out."
        )
    if options["protocol"] != "https" and not given:
        return None
    import ssl

    try:
        context = ssl.create_default_context(cafile=options["ca_cert"])
    except (ssl.SSLError, OSError) as error:
        raise RendezvousParameterError(f"The ca_cert '{options['ca_cert']}' cannot be used: {error}.") from error
    if options["cert"] is not None:
        try:
            context.load_cert_chain(options["cert"], options["key"], password=_no_passphrase)
        except (ssl.SSLError, OSError) as error:
            files = " with the key ".join(f"'{options[name]}'" for name in ("cert", "key") if options[name])
            raise RendezvousParameterError(f"The cert {files} cannot be used: {error}.") from error
    elif options["key"] is not None:
        raise RendezvousParameterError("The option 'key' needs 'cert', the certificate that it belongs to.")
    return context


def _no_passphrase() -> str:
    # Without this, OpenSSL would ask for it on the terminal.
    raise RendezvousParameterError("The client's key is encrypted. Give a key file without a passphrase.")
