"""Everything in the folder of the state register, in one value of a store."""

from collections.abc import Callable

from rdzv_core.backend import Expect, PutOutcome, PutResult, Token
from rdzv_transport import contains

from .store import Store, attempts, peek
from .values import Page, matches


class SharedPage:
    """Reads and writes the page of one run. Keeps what was seen last; any number of threads may use it."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._seen: bytes | None = None
        self._parsed: tuple[bytes | None, Page] = (None, Page())

    def read(self, store: Store) -> Page:
        """What is on it now."""
        self._seen = raw = peek(store, self._key)
        return self._parse(raw)

    def _parse(self, raw: bytes | None) -> Page:
        known, page = self._parsed
        if raw != known:
            page = Page.parse(raw)
            self._parsed = raw, page
        return page

    def put(
        self, store: Store, path: str, value: bytes, expect: Token | Expect, commit: Callable[[], None]
    ) -> PutResult:
        """Write one key under a condition; `commit` is called before the page is written, and may raise."""
        # What was seen last is probably there still: then one call will do.
        raw, fresh = self._seen, False
        for _ in attempts(path):
            page = self._parse(raw)
            if matches(page.entries.get(path), expect):
                new = page.written(path, value)
                commit()
                raw, won = self._write(store, raw, new)
                if won:
                    return PutResult(PutOutcome.APPLIED, new.entries[path])
            elif fresh:
                return PutResult(PutOutcome.CONFLICT, page.entries.get(path))
            else:
                raw = self._seen = peek(store, self._key)
            fresh = True
        raise AssertionError("attempts() raises")

    def delete(self, store: Store, prefix: str) -> list[str]:
        """Remove everything at or under `prefix`; returns the paths that were there."""
        raw = peek(store, self._key)
        for _ in attempts(prefix):
            page = self._parse(raw)
            gone = [path for path in page.entries if contains(prefix, path)]
            left = {path: entry for path, entry in page.entries.items() if path not in gone}
            won = not gone
            if gone:
                raw, won = self._write(store, raw, Page(left, page.created))
            if won:
                return gone
        raise AssertionError("attempts() raises")

    def _write(self, store: Store, there: bytes | None, new: Page) -> tuple[bytes | None, bool]:
        """Replace the page if it is the expected one; returns its present bytes, and whether it was replaced."""
        raw = new.pack()
        found = store.compare_set(self._key, there or b"", raw)
        won = found == raw
        # A missing page answers with what was expected of it.
        self._seen = None if found == there and not won else found
        return self._seen, won
