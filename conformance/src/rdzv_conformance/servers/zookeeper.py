"""Real ZooKeeper servers on this machine: one, or an ensemble."""

import os
import re
import shutil
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .cluster import ClusterMember, LocalCluster
from .requirement import ServiceMissingError

_BINARY_VARIABLE: Final = "RDZV_ZOOKEEPER_BINARY"
_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_DEBIAN: Final = Path("/usr/share/java")
_HOMES: Final = ("/opt/zookeeper", "/usr/local/zookeeper", "/usr/local/opt/zookeeper/libexec", "/usr/share/zookeeper")

# A small server that starts fast: in tests many run at once, and none for long.
_JAVA_OPTIONS: Final = (
    "-Xmx256m",
    "-Xshare:auto",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
    "-Dzookeeper.forceSync=no",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


@dataclass(frozen=True)
class ZooKeeperTls:
    """The certificates of a ZooKeeper server that speaks TLS to its clients, as paths of PEM files.

    Attributes:
        cert: The server's certificate, with its private key (PKCS #8) in the same file.
        ca: The authority that signed the certificates.
        client_auth: Whether a client must show a certificate too: ``need``, ``want`` or ``none``.
    """

    cert: str | Path
    ca: str | Path
    client_auth: str = "need"

    def settings(self) -> dict[str, str]:
        """The lines of the server's configuration."""
        return {
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": str(self.cert),
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": str(self.ca),
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": self.client_auth,
            "ssl.hostnameVerification": "false",
        }


class ZooKeeperServer(ClusterMember):
    """A real ZooKeeper server on a free port of 127.0.0.1.

    ::

        with ZooKeeperServer() as server:
            backend = connect_to(server.get_endpoint())

    It needs Java, in ``JAVA_HOME`` or ``PATH``. ZooKeeper itself is the installation whose ``zkServer.sh`` the
    variable ``RDZV_ZOOKEEPER_BINARY`` names, else the one in ``PATH``, else Debian's package ``zookeeper``, else
    one of the usual folders. The process never outlives its owner, not even one that is killed with -9.
    Writes are not synced to the disk: they survive the server's crash, not the machine's.

    Args:
        data_dir: Where ZooKeeper keeps its data, and leaves it. None: a temporary folder, removed by `stop`.
        settings: More lines of ``zoo.cfg``, or other values of the default ones.
        java_options: More options of Java's, such as ``-Djava.security.auth.login.config=...``.
        tls: Speak TLS to clients.
        tick_time: The server's unit of time in milliseconds: the shortest session lasts two of them.
    """

    program = "zookeeper"
    port_count = 4
    settings_elsewhere = ("CLASSPATH", "JDK_JAVA_OPTIONS")

    def __init__(
        self,
        data_dir: str | Path | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
        tls: ZooKeeperTls | None = None,
        tick_time: int = 500,
    ) -> None:
        super().__init__(data_dir)
        self.tls = tls
        self.tick_time = tick_time
        self._settings = dict(settings or {})
        self._java_options = tuple(java_options)

    @classmethod
    def find_binary(cls) -> Path:
        """The jar, or the folder of jars, of the ZooKeeper on this machine.

        Raises:
            ServiceMissingError: There is none, or no Java; the message says how to get them.
        """
        _find_java()
        named = os.environ.get(_BINARY_VARIABLE)
        if named:
            found = _jars_beside(Path(named))
            if found is None:
                raise ServiceMissingError(
                    f"{_BINARY_VARIABLE} names {named!r}; it must be the bin/zkServer.sh of a ZooKeeper with its jars."
                )
            return found
        in_path = shutil.which("zkServer.sh") or shutil.which("zkServer")
        homes = [Path(home, "bin", "zkServer.sh") for home in _HOMES]
        found = _jars_beside(Path(in_path)) if in_path else None
        if found is None and (_DEBIAN / "zookeeper.jar").exists():
            found = _DEBIAN / "zookeeper.jar"
        found = found or next(filter(None, map(_jars_beside, homes)), None)
        if found is None:
            raise ServiceMissingError(
                "No ZooKeeper on this machine. On Debian run `python3 dev/tools/services.py install zookeeper` (or "
                "`apt install zookeeper`) as root; elsewhere unpack https://zookeeper.apache.org/releases.html and "
                f"name its bin/zkServer.sh in {_BINARY_VARIABLE}."
            )
        return found

    def ask(self, word: str, timeout: float = 5) -> str:
        """What the server answers to one of ZooKeeper's four-letter words, such as ``srvr`` or ``cons``.

        Args:
            word: Which.
            timeout: Seconds until it must say something.

        Raises:
            OSError: The server does not answer.
        """
        with socket.create_connection((self.host, self._plain_port()), timeout) as line:
            line.sendall(word.encode())
            return b"".join(iter(lambda: line.recv(65536), b"")).decode()

    def calls(self) -> Counter[str]:
        """How many requests the server has taken since its start, heartbeats and connecting included.

        ZooKeeper does not count them by kind. Two of them can be subtracted.

        Raises:
            OSError: The server does not answer.
        """
        return Counter(request=self._count("zk_packets_received"))

    def watches(self) -> int:
        """How many watches its clients have set.

        Raises:
            OSError: The server does not answer.
        """
        return self._count("zk_watch_count")

    def sessions(self) -> int:
        """How many sessions live.

        Raises:
            OSError: The server does not answer.
        """
        return self._count("zk_global_sessions")

    def _leads(self) -> bool:
        return "\nMode: leader\n" in self.ask("srvr", timeout=1)

    def _plain_port(self) -> int:
        """The port without TLS, which is that of the clients unless they speak it."""
        return self._ports[1 if self.tls else 0]

    def _count(self, name: str) -> int:
        found = re.search(rf"^{name}\t(\d+)", self.ask("mntr"), re.MULTILINE)
        if found is None:
            raise ConnectionRefusedError("The server serves no requests now.")
        return int(found[1])

    def _peer(self) -> str:
        return f"{self.host}:{self._ports[2]}:{self._ports[3]}"

    def _command(self, data_dir: Path) -> Sequence[str | Path]:
        peers = {f"server.{number}": member._peer() for number, member in enumerate(self._members, 1)}
        (data_dir / "myid").write_text(f"{self._members.index(self) + 1}\n")
        settings = {
            "dataDir": str(data_dir),
            "tickTime": str(self.tick_time),
            "initLimit": "10",
            "syncLimit": "5",
            "clientPort": str(self._plain_port()),
            "clientPortAddress": self.host,
            # Many nodes on one machine share its address.
            "maxClientCnxns": "0",
            # Of those that connect at once the 51st would otherwise wait for a second or more (3.6 or newer).
            "clientPortListenBacklog": "4096",
            "maxSessionTimeout": "60000",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            **({"secureClientPort": str(self.get_port()), "secureClientPortAddress": self.host} if self.tls else {}),
            **(self.tls.settings() if self.tls else {}),
            **(peers if len(peers) > 1 else {}),
            **self._settings,
        }
        file = data_dir / "zoo.cfg"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return [_find_java(), *_JAVA_OPTIONS, *self._java_options, "-cp", _classpath(self.find_binary()), _MAIN, file]

    def _is_ready(self) -> bool:
        # The port for TLS opens last.
        socket.create_connection((self.host, self.get_port()), timeout=1).close()
        return "\nMode: " in self.ask("srvr", timeout=1)


class ZooKeeperCluster(LocalCluster[ZooKeeperServer]):
    """An ensemble of real ZooKeeper servers."""

    member_type = ZooKeeperServer


def _find_java() -> Path:
    home = os.environ.get("JAVA_HOME")
    in_home = Path(home, "bin", "java") if home else None
    if in_home and os.access(in_home, os.X_OK):
        return in_home
    in_path = shutil.which("java")
    if in_path is None:
        raise ServiceMissingError(
            "ZooKeeper needs Java. On Debian, `apt install default-jre-headless`; elsewhere install a Java runtime "
            "and name its folder in JAVA_HOME."
        )
    return Path(in_path)


def _jars_beside(script: Path) -> Path | None:
    """The folder of jars that belongs to a ``bin/zkServer.sh``, if it does have one."""
    folder = script.resolve().parent.parent / "lib"
    return folder if any(folder.glob("zookeeper-[0-9]*.jar")) else None


def _classpath(found: Path) -> str:
    if found.is_dir():
        return f"{found}/*"
    # Debian's jar names the others that it needs, but for those of TLS and of a log.
    more = [path for name in ("slf4j-simple", "netty-*") for path in found.parent.glob(f"{name}.jar")]
    return os.pathsep.join(map(str, [found, *more]))
