"""A run waits for the processes of the previous run."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.errors import ConflictError
from headwater.spark.session import session
from headwater.spark.session.java import find_java

PROGRAM = """
import sys
from pathlib import Path
from headwater.spark.session.session import spark_session
with spark_session("test", master="local[1]", log_file=Path(sys.argv[1])) as spark:
    print(spark.range(3).count())
"""


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


@pytest.mark.parametrize("kills", [1, 2])
def test_java_may_be_killed_once_before_it_is_ready(tmp_path: Path, kills: int) -> None:
    real = find_java(os.environ).chosen.home
    assert real is not None
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="17.0.1"\n')
    java = home / "bin" / "java"
    java.write_text(
        f"#!/bin/sh\n[ $(ls {tmp_path}/killed* 2>/dev/null | wc -l) -lt {kills} ] && "
        f'mktemp {tmp_path}/killed.XXXX >&2 && kill -9 $$\nexec {real}/bin/java "$@"\n'
    )
    java.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, tmp_path / "spark.log"],
        env={**os.environ, "JAVA_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert len(list(tmp_path.glob("killed*"))) == kills
    if kills == 1:
        assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    else:
        assert "cannot start Spark at 'local[1]'" in done.stderr
