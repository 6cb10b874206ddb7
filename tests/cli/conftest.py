"""Run commands as users do: as processes."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def headwater(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run a command in an empty folder and wait for it."""

    def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "headwater", *map(str, arguments)],
            cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip

    return run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a command in the background; kill it and its children at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str | Path, stdout: int = subprocess.PIPE) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "headwater", *map(str, arguments)],
            cwd=tmp_path, stdout=stdout, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def free_port() -> int:
    """Return a port outside the ephemeral range, so that it is still free when a broker restarts."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
