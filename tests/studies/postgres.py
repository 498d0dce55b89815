"""A PostgreSQL server of the tests' own, a wire to it that can be cut, and clients of a study."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

PASSWORD = "hunter2-secret"
"""Of the test user: no output may ever hold it."""
_UNPRIVILEGED = ("postgres", "nobody")


def binaries() -> Path | None:
    """The folder of ``initdb``: on PATH, or where Debian puts the newest."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(folders, key=lambda path: int(path.parent.name), default=None)


def _user() -> pwd.struct_passwd | None:
    """The user that PostgreSQL runs as, which must not be root; None: as this one."""
    if os.getuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next(known[name] for name in _UNPRIVILEGED if name in known)


@dataclass
class Postgres:
    """A server in ``folder`` that listens on a loopback port, with password authentication."""

    folder: Path
    binaries: Path
    port: int = 0

    def url(self, database: str = "postgres", port: int | None = None) -> str:
        """The address of a database, with its password."""
        return f"postgresql://foretune:{PASSWORD}@127.0.0.1:{port or self.port}/{database}"

    def create(self) -> None:
        """Makes the data folder and starts the server."""
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o755)
        if user := _user():
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        password = self.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        self._run(
            *("initdb", "-D", str(self.data), "-U", "foretune", "-A", "scram-sha-256"),
            *("--pwfile", str(password), "-N", "-E", "UTF8", "--locale=C"),
        )
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(
                f"port = {self.port}\nlisten_addresses = '127.0.0.1'\n"
                f"unix_socket_directories = ''\nmax_connections = 100\nshared_buffers = 32MB\n"
                "fsync = off\n"  # what is killed here are processes, never the machine
            )
        self.start()

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.folder / "data"

    def start(self) -> None:
        """Starts it and waits until it answers."""
        self._run("pg_ctl", "-D", str(self.data), "-l", str(self.folder / "log"), "-w", "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stops it; ``immediate`` is what a crash is to its clients."""
        self._run("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "stop")

    def database(self, name: str) -> str:
        """The URL of a new, empty database."""
        import psycopg2

        connection = psycopg2.connect(self.url())
        connection.autocommit = True
        connection.cursor().execute(f"create database {name}")
        connection.close()
        return self.url(name)

    def _run(self, program: str, *arguments: str) -> None:
        user = _user()
        with (self.folder / "setup.log").open("ab") as log:
            subprocess.run(
                [str(self.binaries / program), *arguments],
                check=True,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=user.pw_uid if user else None,
                group=user.pw_gid if user else None,
                extra_groups=[] if user else None,
            )


@dataclass
class Wire:
    """A TCP connection to a port that can be cut and mended: the network of one worker."""

    target: int
    port: int = 0
    _listener: socket.socket | None = None
    _open: list[socket.socket] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def mend(self) -> None:
        """Listens, on the same port as before."""
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        """Drops every connection and refuses new ones."""
        listener, self._listener = self._listener, None
        with self._lock:
            sockets, self._open = [*self._open, *([listener] if listener else [])], []
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            with self._lock:
                if self._listener is not listener:
                    client.close()
                    server.close()
                    return
                self._open += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Carries bytes until either side is closed."""
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            sink.sendall(piece)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
