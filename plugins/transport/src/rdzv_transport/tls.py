"""TLS by options: whom to trust, and which certificate of our own to show."""

import ssl
from typing import Any

from rdzv_core.errors import RendezvousParameterError

from .forks import NO_FORK
from .present import Present


def pop_tls_context(
    options: dict[str, Any], words: tuple[str, str, str] = ("protocol", "http", "https")
) -> Present[ssl.SSLContext] | None:
    """Make a context of the parsed `tls_options` and take them out, all but ``server_name``; see `tls_context`."""
    switch = options.pop(words[0])
    protocol = str(switch).lower() if isinstance(switch, bool) else switch
    files = {name: (name, options.pop(name)) for name in ("ca_cert", "cert", "key")}
    server_name = "server_name", options["server_name"]
    return tls_context(words, protocol=protocol, server_name=server_name, **files)


def tls_context(
    words: tuple[str, str, str] = ("protocol", "http", "https"),
    /,
    *,
    protocol: str | None,
    ca_cert: tuple[str, str | None],
    cert: tuple[str, str | None],
    key: tuple[str, str | None],
    server_name: tuple[str, str | None] = ("server_name", None),
) -> Present[ssl.SSLContext] | None:
    """How to verify the service, and with which certificate of our own.

    Args:
        words: The name of the option that switches TLS, and what its value is without TLS and with TLS.
        protocol: That value, or None: with TLS if anything else here is given.
        ca_cert: The name of the option, for messages, and its value: who must have signed the service's
            certificate (None: the system's authorities).
        cert: Likewise: our own certificate, and its key if that is not apart.
        key: Likewise: the key of our certificate.
        server_name: Likewise: the name that must be in the service's certificate.

    Returns:
        The context, made anew when a file changes: so certificate and key change as a pair that fits. None if there is
        to be no TLS.

    Raises:
        RendezvousParameterError: The options contradict each other, or a file cannot be used.
    """
    option, without, by = words
    given = [name for name, value in (ca_cert, cert, key, server_name) if value is not None]
    if protocol == without and given:
        raise RendezvousParameterError(
            f"The option '{given[0]}' needs TLS, but {option} is {without}. "
            f"Set {option}={by}, or leave one of them out."
        )
    if protocol != by and not given:
        return None
    if key[1] is not None and cert[1] is None:
        raise RendezvousParameterError(f"The option '{key[0]}' needs '{cert[0]}', the certificate that it belongs to.")
    files = [path for _, path in (ca_cert, cert, key) if path is not None]
    return Present(files, lambda: _context(ca_cert, cert, key))


def _context(
    ca_cert: tuple[str, str | None], cert: tuple[str, str | None], key: tuple[str, str | None]
) -> ssl.SSLContext:
    try:
        with NO_FORK:
            context = ssl.create_default_context(cafile=ca_cert[1])
    except (ssl.SSLError, OSError) as error:
        raise RendezvousParameterError(f"The {ca_cert[0]} '{ca_cert[1]}' cannot be used: {error}.") from error
    if cert[1] is not None:
        try:
            with NO_FORK:
                context.load_cert_chain(cert[1], key[1], password=_no_passphrase)
        except (ssl.SSLError, OSError) as error:
            files = " with the key ".join(f"'{file}'" for _, file in (cert, key) if file)
            raise RendezvousParameterError(f"The {cert[0]} {files} cannot be used: {error}.") from error
    return context


def _no_passphrase() -> str:
    # Without this, OpenSSL would ask for it on the terminal.
    raise RendezvousParameterError("The client's key is encrypted. Give a key file without a passphrase.")
