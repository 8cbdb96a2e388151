"""What the tests do with clients, again and again."""

from typing import Protocol

from rdzv_etcd_v3 import EtcdV3Backend

CALL = 10.0


class Connect(Protocol):
    """Makes clients of one run, and closes them in the end."""

    def __call__(self, endpoint: str, **options: object) -> EtcdV3Backend: ...
