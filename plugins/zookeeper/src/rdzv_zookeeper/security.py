"""Who we are to ZooKeeper, and who may use our nodes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rdzv.errors import RendezvousParameterError

from . import wire
from .failures import BrokenError, EndpointError
from .transport import Line

__all__ = ["Login", "parse_acl"]

_LETTERS: Final = {"r": 1, "w": 2, "c": 4, "d": 8, "a": 16}
"""What a user of a node may do, by zkCli's letters: read, write, create, delete, administrate."""


@dataclass(frozen=True)
class Login:
    """Who we are. The default is nobody, or whom our certificate names.

    Attributes:
        user: A name.
        password: Its password.
        sasl: By which mechanism to log in, such as ``DIGEST-MD5`` or ``GSSAPI``; None: by ZooKeeper's digest
            scheme, which checks nothing but gives the nodes that we create an owner.
        service: The name of the server's service, for SASL.
    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    sasl: str | None = None
    service: str = "zookeeper"

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if self.sasl is None:
            if (self.user is None) != (self.password is None):
                raise RendezvousParameterError("The options 'user' and 'password' need each other; one is missing.")
            if self.user is not None and ":" in self.user:
                raise RendezvousParameterError(f"The user '{self.user}' has a colon, which ends a name in ZooKeeper.")
            return
        if self.sasl == "DIGEST-MD5" and (self.user is None or self.password is None):
            raise RendezvousParameterError(
                "SASL by DIGEST-MD5 needs the options 'user' and 'password'; give both, or leave 'sasl' out."
            )
        try:
            import puresasl.client  # type: ignore[import-untyped]
        except ImportError as error:
            raise RendezvousParameterError(
                "The option 'sasl' needs a package: pip install 'rdzv-zookeeper[sasl]'."
            ) from error
        del puresasl

    @property
    def who(self) -> str:
        """In words."""
        if self.user is None:
            return "a client without user and password" if self.sasl is None else f"a client by {self.sasl}"
        return f"the user '{self.user}'"

    def perform(self, line: Line, deadline: float) -> None:
        """Log in over a new line.

        Raises:
            EndpointError: The server does not take it.
            BrokenError: The server did not answer.
        """
        if self.sasl is not None:
            self._negotiate(self.sasl, line, deadline)
        elif self.user is not None:
            request = wire.Auth(0, "digest", f"{self.user}:{self.password}")
            self._ask(line, request, wire.AUTH_XID, deadline)

    def _negotiate(self, mechanism: str, line: Line, deadline: float) -> None:
        client = self._sasl_client(mechanism, line)
        challenge: bytes | None = None
        number = 0
        while not client.complete:
            try:
                response = client.process(challenge)
            except Exception as error:  # each mechanism has errors of its own
                raise EndpointError(f"logging in as {self.who} failed: {error}", denied=True) from error
            if client.complete and not response:
                break
            number += 1
            try:
                data = self._ask(line, wire.SASL(response or b""), number, deadline)
            except BrokenError as error:
                if time.monotonic() >= deadline:
                    raise BrokenError(f"{error} to a login by {mechanism}; does this server know SASL?") from error
                # This is how a server says that it does not know us.
                raise EndpointError(f"it ended the connection when {self.who} logged in", denied=True) from error
            challenge, _ = wire.SASL.deserialize(data, wire.HEADER_SIZE)
        client.dispose()

    def _sasl_client(self, mechanism: str, line: Line) -> Any:
        import puresasl.client

        # ZooKeeper has its own fixed name of the server for this one.
        host = "zk-sasl-md5" if mechanism == "DIGEST-MD5" else line.endpoint.host
        options = {"username": self.user, "password": self.password} if self.password is not None else {}
        principal = {"principal": self.user} if mechanism == "GSSAPI" and self.user is not None else {}
        try:
            return puresasl.client.SASLClient(host, self.service, mechanism, **options, **principal)
        except Exception as error:
            raise EndpointError(f"SASL by {mechanism} is not possible: {error}", denied=True) from error

    def _ask(self, line: Line, request: wire.Request, number: int, deadline: float) -> bytes:
        line.send(wire.frame(request, number), deadline)
        data = line.receive_one(deadline)
        _, _, code = wire.parse_header(data)
        if code:
            why = type(wire.error_of(code)).__name__
            raise EndpointError(f"it refused {self.who}: {why}; check the options user, password and sasl", denied=True)
        return data


def parse_acl(text: str | None, login: Login) -> tuple[wire.ACL, ...]:
    """Who may use the nodes that we create.

    Args:
        text: ``open``, ``creator``, or entries as zkCli writes them (``scheme:id:rwcda``), with ``;`` between.
            None: ``creator`` if we log in, else ``open``.
        login: Who we are.

    Raises:
        RendezvousParameterError: It cannot be used.
    """
    if text is None:
        text = "open" if login.user is None and login.sasl is None else "creator"
    known = {"open": "world:anyone:rwcda", "creator": "auth::rwcda"}
    return _acl([entry.strip() for entry in known.get(text, text).split(";")])


def _acl(entries: Sequence[str]) -> tuple[wire.ACL, ...]:
    found = []
    for entry in entries:
        scheme, colon, rest = entry.partition(":")
        name, other_colon, letters = rest.rpartition(":")
        if not (scheme and colon and other_colon and letters) or not _LETTERS.keys() >= set(letters):
            raise RendezvousParameterError(
                f"The acl '{entry}' is malformed. Write open, creator, or scheme:id:rwcda, such as "
                "sasl:rdzv:rwcda;world:anyone:r."
            )
        found.append(wire.ACL(sum(_LETTERS[letter] for letter in set(letters)), wire.Id(scheme, name)))
    return tuple(found)
