"""How names become keys that every service takes as they are, and back again.

Services collapse ``//``, forbid ``..`` or treat ``/`` as a folder; so everything but a small alphabet is written as
``=XX`` (the hexadecimal value of a UTF-8 byte), as in quoted-printable (RFC 2045, section 6.7).
"""

import re
from typing import Final

__all__ = ["escape", "unescape"]

_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")
_ESCAPED: Final = re.compile(rb"=([0-9A-F]{2})")


def escape(name: str) -> str:
    """Make one key segment of any non-empty text."""
    data = name.encode("utf-8", "surrogatepass")
    if not data:
        raise ValueError("A key needs at least one character.")
    plain = _PLAIN if data.strip(b".") else frozenset()  # "." and ".." mean something to services with paths.
    return "".join(chr(byte) if byte in plain else f"={byte:02X}" for byte in data)


def unescape(segment: str) -> str:
    """The text that `escape` made `segment` of. What it did not make stands for itself."""
    data = _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), segment.encode("utf-8", "surrogatepass"))
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return segment
