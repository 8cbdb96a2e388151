"""Where keys are in etcd's tree of files and directories.

A key is a directory, and its value a file in it; so ``a/b`` and ``a/b/c`` can both be keys, which a file and a
directory of one name cannot. What begins with an underscore is hidden from etcd's lists and waits, and gets a
colon in front.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

_VALUE: Final = ":value"
"""The file of a key's value. No segment of a key has a colon."""


class Tree:
    """The part of etcd's tree that belongs to one run.

    Args:
        root: Its directory, such as ``/rdzv/job-7``.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def directory(self, prefix: str) -> str:
        """The URL's path of the directory that holds all keys at or under `prefix`."""
        return self.url(f"{self.root}/{_shown(prefix)}")

    def file(self, key: str) -> str:
        """The URL's path of a key's value."""
        return f"{self.directory(key)}/{quote(_VALUE)}"

    def above(self, prefix: str) -> Iterator[str]:
        """The URLs' paths of the directories above that of `prefix`, from the nearest up to the run's own."""
        parts = prefix.split("/")
        for length in range(len(parts) - 1, 0, -1):
            yield self.directory("/".join(parts[:length]))
        yield self.everything()

    def name(self, path: str) -> str | None:
        """The key whose value is the file at `path`; None if that holds no key."""
        directory, _, file = path.removeprefix(f"{self.root}/").rpartition("/")
        if file != _VALUE or not directory or not path.startswith(f"{self.root}/"):
            return None
        return "/".join(segment.removeprefix(":") for segment in directory.split("/"))

    def key(self, path: str) -> str | None:
        """The key whose directory is at `path`; None if that is no key's."""
        return self.name(f"{path}/{_VALUE}")

    def everything(self) -> str:
        """The URL's path of the run's directory."""
        return self.url(self.root)

    def url(self, path: str) -> str:
        """The URL's path of a file or directory."""
        return quote(f"/v2/keys{path}")


def files(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every file in what etcd lists."""
    if not node.get("dir"):
        yield node
    for child in node.get("nodes", ()):
        yield from files(child)


def _shown(name: str) -> str:
    return "/".join(f":{segment}" if segment.startswith("_") else segment for segment in name.split("/"))
