"""A backend whose calls pass through a function, which counts them or has them fail."""

from collections.abc import Callable
from typing import Any, Final

from rdzv_core.backend import KeyValueBackend, Lease, PutResult

_DECLARED: Final = ("name", "capabilities", "unsupported", "min_lease_ttl", "creates_at_once")

Around = Callable[[str, Callable[[], Any], tuple[Any, ...]], Any]
"""Is given a method's name, what calls it, and its positional arguments; returns the answer, or raises."""


def intercepted(inner: KeyValueBackend, around: Around) -> KeyValueBackend:
    """`inner`, with everything that it declares; each call to it or to a lease of it passes through `around`.

    What a backend asks of itself does not.
    """
    declared = {name: getattr(inner, name) for name in _DECLARED}
    kind: type[_Backend] = type("Intercepted", (_Backend,), declared)
    return kind(inner, around)


def _passing(name: str) -> Any:
    """The method of that name, which passes through."""

    def method(self: "_Intercepted", *arguments: Any, **options: Any) -> Any:
        return self._around(name, lambda: getattr(self._inner, name)(*arguments, **options), arguments)

    return method


class _Intercepted:
    def __init__(self, inner: Any, around: Around) -> None:
        self._inner = inner
        self._around = around


class _Backend(_Intercepted, KeyValueBackend):
    _inner: KeyValueBackend
    read = _passing("read")
    read_all = _passing("read_all")
    delete = _passing("delete")
    delete_version = _passing("delete_version")
    create_all = _passing("create_all")
    wait = _passing("wait")

    @property
    def local_address(self) -> str:
        return self._inner.local_address

    def put(self, key: str, value: bytes, *, lease: Lease | None = None, **rest: Any) -> PutResult:
        held = lease._inner if isinstance(lease, _Lease) else lease
        result: PutResult = self._around("put", lambda: self._inner.put(key, value, lease=held, **rest), (key, value))
        return result

    def open_lease(self, ttl: float, *, timeout: float) -> Lease:
        opened = self._around("open_lease", lambda: self._inner.open_lease(ttl, timeout=timeout), (ttl,))
        return _Lease(opened, self._around)

    def background(self) -> KeyValueBackend:
        return intercepted(self._inner.background(), self._around)

    def close(self) -> None:
        self._inner.close()


class _Lease(_Intercepted, Lease):
    _inner: Lease
    keep_alive = _passing("keep_alive")
    revoke = _passing("revoke")

    @property
    def ttl(self) -> float:
        return self._inner.ttl
