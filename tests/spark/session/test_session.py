"""A run waits for the processes of the previous run."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.errors import ConflictError
from headwater.spark.session import session


def test_processes_of_an_earlier_run_hold_the_inherited_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "spark.log"
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        survivor = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=file)
    monkeypatch.setattr(session, "PREDECESSOR_S", 0.2)
    with path.open("ab") as file:
        with pytest.raises(ConflictError, match="processes of an earlier run"):
            session._wait_for_lock(file.fileno(), path)
        survivor.communicate(b"\n")
        session._wait_for_lock(file.fileno(), path)
