"""The wrapper around every value that rdzv puts into a service.

It settles what services cannot say: whose compare-and-set was applied if its reply was lost, a value
written twice (a service may not count that as a change), a version number that starts again after
a delete. Its `epoch` is the fencing number: it grows with every conditional write of a key.

On the wire: one line of JSON, then the payload as it is.
"""

import json
import secrets
from dataclasses import dataclass
from typing import Any, Final, Self

from .errors import RendezvousStateError
from .text import shown

_SCHEMA: Final = 1
# What is written after a value that was read can be read itself, whatever that one says of its epoch.
_MAX_EPOCH: Final = 2**62 - 1
NONCE_HISTORY: Final = 48
"""How many earlier nonces a value carries: so many writers may overtake the one whose reply was
lost before it can no longer learn that it was applied. The last is always the nonce of the key's first write,
so a writer that tried to make the key learns that from any later value."""


class OtherVersionError(RendezvousStateError):
    """What the service holds was written by another version of rdzv."""


def other_version(what: str, schema: int, known: int) -> OtherVersionError:
    """The error for `what` was read: its schema is not the one that is known."""
    return OtherVersionError(
        f"{what} was written by another version of rdzv (schema {shown(schema)}, this one reads {known}). "
        "Use that version for this run, or another run id; once its nodes have ended, `rdzv close --purge` removes it."
    )


@dataclass(frozen=True, slots=True)
class Envelope:
    """A payload with the facts that identify this very write.

    Attributes:
        payload: The bytes inside.
        writer: The id of the node that wrote it.
        nonce: Random; no two writes share it.
        epoch: One more than the value it replaced.
        recent_nonces: The nonces of the writes before this one, latest first; the last is the key's first
            (`NONCE_HISTORY`).
        deleted: A tombstone: the key counts as absent (conditional delete).
    """

    payload: bytes
    writer: str
    nonce: str
    epoch: int = 1
    recent_nonces: tuple[str, ...] = ()
    deleted: bool = False

    @classmethod
    def wrap(cls, payload: bytes, *, writer: str, previous: "Envelope | None" = None, deleted: bool = False) -> Self:
        """Wrap `payload` as the successor of `previous` (None: the first value of its key)."""
        nonce = secrets.token_hex(6)
        if previous is None:
            return cls(payload, writer, nonce, deleted=deleted)
        recent_nonces = (previous.nonce, *previous.recent_nonces)
        if len(recent_nonces) > NONCE_HISTORY:
            recent_nonces = (*recent_nonces[: NONCE_HISTORY - 1], recent_nonces[-1])
        return cls(payload, writer, nonce, min(previous.epoch + 1, _MAX_EPOCH), recent_nonces, deleted)

    def supersedes(self, known: "Envelope") -> bool:
        """Whether this is later than a value of the same key that is known: it did not come before.

        Its epoch says less: a service that has forgotten everything counts anew.
        """
        return self.nonce not in (known.nonce, *known.recent_nonces)

    def pack(self) -> bytes:
        """The bytes for the wire."""
        header: dict[str, Any] = {"rdzv": _SCHEMA, "writer": self.writer, "nonce": self.nonce, "epoch": self.epoch}
        if self.recent_nonces:
            header["past"] = self.recent_nonces
        if self.deleted:
            header["deleted"] = True
        return json.dumps(header, separators=(",", ":")).encode() + b"\n" + self.payload

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Read the bytes from the wire.

        Raises:
            RendezvousStateError: They are not an envelope that this version understands.
        """
        header_bytes, newline, payload = data.partition(b"\n")
        try:
            # Of bytes json would guess the encoding, which takes a quarter of the time.
            header = json.loads(str(header_bytes, "utf-8"))
            if type(schema := header["rdzv"]) is not int or not newline:
                raise ValueError("no envelope")
            if schema != _SCHEMA:
                raise other_version("A value in the service", schema, _SCHEMA)
            past, deleted = tuple(header.get("past", ())), header.get("deleted", False)
            envelope = cls(payload, header["writer"], header["nonce"], header["epoch"], past, deleted)
            envelope._check_types()
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise RendezvousStateError(f"A value in the service was not written by rdzv: {data[:80]!r}") from error
        return envelope

    def _check_types(self) -> None:
        # A hostile header may be well-formed JSON and still hold anything anywhere; the next one is made of it.
        texts = (self.writer, self.nonce, *self.recent_nonces)
        if not all(isinstance(text, str) and len(text) < 256 for text in texts):
            raise TypeError("a short text is expected")
        if type(self.epoch) is not int or not 0 < self.epoch <= _MAX_EPOCH or type(self.deleted) is not bool:
            raise TypeError("epoch or deleted is malformed")
