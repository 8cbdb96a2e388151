"""The user that we log in as at ZooKeeper, and what users may do with our nodes."""

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from kazoo.exceptions import ZookeeperError  # type: ignore[import-untyped]
from kazoo.protocol.serialization import SASL, Auth  # type: ignore[import-untyped]
from kazoo.security import ACL, Id  # type: ignore[import-untyped]
from rdzv_core.errors import RendezvousParameterError
from rdzv_transport import EndpointError, Present

from . import wire
from .failures import NotZooKeeperError

_LETTERS: Final = {"r": 1, "w": 2, "c": 4, "d": 8, "a": 16}
"""What a user of a node may do, by zkCli's letters: read, write, create, delete, administrate."""


@dataclass(frozen=True)
class Login:
    """The user that logs in. The default is none, or the one that our certificate names.

    Without a mechanism for SASL, a user logs in by ZooKeeper's digest scheme, which checks nothing but gives the
    nodes that we create an owner.
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

    @property
    def opening(self) -> bytes:
        """What is sent over a new line before `perform`. Requests may come right behind it, unless that is SASL's."""
        return b"" if self.user is None or self.sasl is not None else wire.frame(self._digest, wire.AUTH_XID)

    def perform(self, line: wire.Line, host: str, deadline: float) -> None:
        """Log in over a new line to `host`, to which the opening was sent.

        Raises:
            EndpointError: The server does not take it, or did not answer.
        """
        if self.sasl is not None:
            self._negotiate(self.sasl, line, host, deadline)
        elif self.user is not None:
            self._check(self._digest, line.next(deadline))

    def _negotiate(self, mechanism: str, line: wire.Line, host: str, deadline: float) -> None:
        client, challenge = self._sasl_client(mechanism, host), None
        number = 0
        while not client.complete:
            try:
                response = client.process(challenge)
            except Exception as error:  # each mechanism has errors of its own
                raise _refused(f"logging in as {self.who} failed: {error}") from error
            if client.complete and not response:
                break
            number += 1
            try:
                request = SASL(response or b"")
                line.send(wire.frame(request, number), deadline)
                challenge, _ = self._check(request, line.next(deadline))
            except EndpointError as error:
                if error.denied or isinstance(error, NotZooKeeperError):
                    raise
                if time.monotonic() >= deadline:
                    said = f"{error} to a login by {mechanism}; does this server know SASL?"
                    raise EndpointError(said, applied=False) from error
                # This is how a server says that it does not know us.
                raise _refused(f"it ended the connection when {self.who} logged in") from error
        client.dispose()

    @property
    def _digest(self) -> Auth:
        # The password is a part of the name that owns our nodes: another one would be another user.
        return Auth(0, "digest", f"{self.user}:{self.password}")

    @cached_property
    def _password(self) -> Present[str] | None:
        return None if self.password is None else Present.secret(self.password)

    def _sasl_client(self, mechanism: str, host: str) -> Any:
        import puresasl.client

        password = self._password and self._password()
        options = {"username": self.user, "password": password} if password is not None else {}
        if mechanism == "DIGEST-MD5":
            # ZooKeeper has its own fixed name of the server for this one.
            host = "zk-sasl-md5"
        elif self.user is not None:
            options["principal"] = self.user
        try:
            return puresasl.client.SASLClient(host, self.service, mechanism, **options)
        except Exception as error:
            raise _refused(f"SASL by {mechanism} is not possible: {error}") from error

    def _check(self, request: wire.Request, answer: bytes) -> Any:
        result = wire.read_reply(request, answer).result
        if isinstance(result, ZookeeperError):
            why = type(result).__name__
            raise _refused(f"it refused {self.who}: {why}; check the options user, password and sasl")
        return result


def _refused(reason: str) -> EndpointError:
    return EndpointError(reason, applied=False, denied=True)


def parse_acl(text: str | None, login: Login) -> tuple[ACL, ...]:
    """What users may do with the nodes that we create, by the option ``acl``.

    Raises:
        RendezvousParameterError: It cannot be used.
    """
    if text is None:
        text = "open" if login.user is None and login.sasl is None else "creator"
    known = {"open": "world:anyone:rwcda", "creator": "auth::rwcda"}
    return tuple(_parse_entry(entry.strip()) for entry in known.get(text, text).split(";"))


def _parse_entry(entry: str) -> ACL:
    scheme, colon, rest = entry.partition(":")
    name, other_colon, letters = rest.rpartition(":")
    if not (scheme and colon and other_colon and letters) or not _LETTERS.keys() >= set(letters):
        raise RendezvousParameterError(
            f"The acl '{entry}' is malformed. Write open, creator, or scheme:id:rwcda, such as "
            "sasl:rdzv:rwcda;world:anyone:r."
        )
    return ACL(sum(_LETTERS[letter] for letter in set(letters)), Id(scheme, name))
