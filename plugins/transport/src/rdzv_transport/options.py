"""The options that backends over a network share; each backend declares them among its own."""

from rdzv_core.options import Option


def tls_options(
    whose: str,
    *,
    ca_cert: str = "ca_cert",
    cert: str = "cert",
    key: str = "key",
    server_name: str | None = "server_name",
) -> tuple[Option, ...]:
    """The options that say how to speak TLS.

    Args:
        whose: Whose certificates are verified, for people: ``servers'``.
        ca_cert: The name of the option for the authority.
        cert: The name of the one for our own certificate.
        key: The name of the one for its key.
        server_name: The name of the one for the name in the service's certificates; None: there is none.
    """
    names = [name for name in (ca_cert, cert, key, server_name) if name]
    switch = f"http or https; unset: https if any of {', '.join(names[:-1])} and {names[-1]} is given, else http."
    signed = f"PEM file of the authorities (CA) that sign the {whose} certificates; unset: the system's."
    options = (
        Option("protocol", "text", None, switch, choices=("http", "https")),
        Option(ca_cert, "path", None, signed),
        Option(cert, "path", None, "PEM file of this client's certificate, and its key if that is not apart."),
        Option(key, "path", None, "PEM file of the key of this client's certificate."),
    )
    if server_name is None:
        return options
    hold = f"The name that the {whose} certificates must hold, if not the endpoint's."
    return (*options, Option(server_name, "text", None, hold))


def same_cluster_option() -> Option:
    """The option for whether another cluster than the first one is refused."""
    meaning = "Whether every cluster but the first that answers is refused; false: a restored one is taken."
    return Option("same_cluster", "boolean", True, meaning)


def request_timeout_option(what: str, name: str = "request_timeout") -> Option:
    """The option for how long one of several `what` may take."""
    those = f"one of several {what}, or of a name's addresses,"
    meaning = f"How long {those} may take to answer before the next one is tried."
    return Option(name, "seconds", 3.0, meaning)
