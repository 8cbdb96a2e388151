"""Takes the bytes of one answer over HTTP/1.1 as they come.

Of HTTP it knows what the services need that are called. (Python's `http.client` reads the head of an answer as that of
a mail, which was a quarter of what a call cost; and its buffered readers refuse to go on after a timeout.)
"""

from typing import Final

_LONGEST_HEAD: Final = 1 << 16

LONGEST: Final = 1 << 26
"""64 MiB: more than a service says in one piece, or in one answer, and less than a machine has."""

ENDED: Final = "the answer ended"

_WITHOUT_BODY: Final = frozenset({204, 304})


class Answer:
    """See above.

    Attributes:
        status: Of the answer; 0 until its head is complete.
        headers: Of the answer; their names are in lower case.
        ended: Why nothing more comes of it: `ENDED`, or it is not HTTP; empty while more may come. (It may also
            end with the connection.)
        rest: Of its body, what was received and not taken away.
        is_persistent: Whether another request may follow, once it has ended.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.ended = ""
        self.rest = bytearray()
        self._raw = bytearray()
        self._chunked = False
        self._left: int | None = None
        self._is_old = False

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        self._raw += data
        try:
            while not self.status:
                if not self._take_head():
                    return
            if self._chunked:
                self._take_chunks()
            else:
                self._take_body()
            if len(self.rest) > LONGEST:
                raise ValueError(f"more than {LONGEST} bytes are invalid, in one answer or without the end of a line")
        except ValueError as error:
            self.ended = str(error)

    def end(self) -> None:
        """The connection has ended: that may be the end of the answer, too."""
        if self.status and not self._chunked and self._left is None:
            self.ended = self.ended or ENDED

    @property
    def is_persistent(self) -> bool:
        """See the class."""
        wish = self.headers.get("connection", "").lower()
        lasts = "keep-alive" in wish if self._is_old else "close" not in wish
        return lasts and not self._raw and (self._chunked or self._left is not None)

    def _take_head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n")
        if end < 0 and len(self._raw) < _LONGEST_HEAD:
            return False
        first, *fields = bytes(self._raw[: max(end, 0)]).decode("latin-1").split("\r\n")
        version, _, code = first.lower().partition(" ")
        if not version.startswith("http/1.") or not code[:3].isdigit():
            raise ValueError(f"an HTTP status line is expected, not {bytes(self._raw[:80])!r}")
        self.headers = {}
        for field in fields:
            name, _, value = field.partition(":")
            self.headers[name.lower()] = value.strip()
        del self._raw[: end + 4]
        if code.startswith("1"):  # 100 Continue and its like come before the answer.
            return True
        self._is_old = version == "http/1.0"
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        if "content-length" in self.headers:
            self._left = _size(self.headers["content-length"], 10)
        self.status = int(code[:3])
        if self.status in _WITHOUT_BODY:
            self._chunked, self._left = False, 0
        return True

    def _take_body(self) -> None:
        taken = self._raw[: self._left]
        self.rest += taken
        del self._raw[: len(taken)]
        if self._left is not None:
            self._left -= len(taken)
            self.ended = "" if self._left else ENDED

    def _take_chunks(self) -> None:
        while (end := self._raw.find(b"\r\n", 0, _LONGEST_HEAD)) >= 0:
            start, length = end + 2, _size(self._raw[:end].partition(b";")[0], 16)
            if not length:
                self._take_trailer(start)
                return
            if len(self._raw) < start + length + 2:
                return
            self.rest += self._raw[start : start + length]
            del self._raw[: start + length + 2]
        if len(self._raw) >= _LONGEST_HEAD:
            raise ValueError(f"a chunk without a size is invalid: {bytes(self._raw[:80])!r}")

    def _take_trailer(self, start: int) -> None:
        """The last chunk is there; what follows it is an empty line, and seldom some more headers before it."""
        end = start if self._raw[start : start + 2] == b"\r\n" else self._raw.find(b"\r\n\r\n", start) + 2
        if end >= 2 and len(self._raw) >= end + 2:
            del self._raw[: end + 2]
            self.ended = ENDED
        elif len(self._raw) - start > _LONGEST_HEAD:
            raise ValueError("what follows the last chunk is invalid: it does not end")


def _size(text: str | bytes | bytearray, base: int) -> int:
    """Of a body or a chunk, in bytes."""
    if not 0 <= (size := int(text, base)) <= LONGEST:
        raise ValueError(f"{size} bytes in one piece are invalid: at most {LONGEST}")
    return size
