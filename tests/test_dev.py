"""`./dev`, copied into a small temporary project, with a fake uv that records its calls."""

import hashlib
import http.server
import importlib.machinery
import importlib.util
import io
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

DEV = Path(__file__).parent.parent / "dev"

UV = """\
#!/bin/sh
[ "$1" = -V ] && exit 0
echo "$@" >> "{log}"
case "$1 $2" in
    venv*) mkdir -p "{root}/.venv/bin"; ln -sf /bin/sh "{root}/.venv/bin/python";;
    "pip sync") {sync};;
esac
"""


class Project:
    """A folder with `dev`, a lock file, and the fake uv first on the PATH."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "uv.log"
        shutil.copy(DEV, root / "dev")
        (root / "requirements.lock").write_text("one==1\n")
        (root / "pyproject.toml").write_text('[project]\nname = "x"\n')
        (root / "fake").mkdir()
        self.make_uv()

    def make_uv(self, sync: str = "true") -> None:
        script = UV.format(root=self.root, log=self.log, sync=sync)
        (self.root / "fake" / "uv").write_text(script)
        (self.root / "fake" / "uv").chmod(0o755)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(self.root / "dev"), *arguments]

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{self.root / 'fake'}:{os.environ['PATH']}"}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def uv_calls(self) -> list[str]:
        """Return the commands that uv has received since the last call, without their options."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line.partition(" -")[0] for line in lines]


WHOLE_SET_UP = ["venv", "pip sync", "pip install"]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_help_lists_every_command(project: Project, arguments: list[str]) -> None:
    result = project.run(*arguments)
    assert result.returncode == 0
    for command in ("setup", "test", "fmt", "demo", "bench", "lock", "docs", "compat"):
        assert f"\n  {command}" in result.stdout
    assert project.uv_calls() == []


@pytest.mark.parametrize("command", ["setup", "test", "fmt", "demo", "bench", "lock", "docs", "compat"])
def test_help_of_a_command_has_an_example(project: Project, command: str) -> None:
    result = project.run(command, "--help")
    assert result.returncode == 0
    assert f"example: ./dev {command}" in result.stdout
    assert project.uv_calls() == []


def test_an_unknown_command_is_an_error(project: Project) -> None:
    result = project.run("tset")
    assert result.returncode == 2
    assert result.stderr.startswith("no command named 'tset'; available: setup, test")


def test_bench_lists_benchmarks_and_rejects_unknown_names(project: Project) -> None:
    (project.root / "bench").mkdir()
    (project.root / "bench" / "append.py").write_text('"""Appends.\n\nMore."""\n')
    assert project.run("bench").stdout.split() == ["append", "Appends."]
    result = project.run("bench", "apend")
    assert result.returncode == 2
    assert result.stderr == "no benchmark named 'apend'; available: append\n"
    assert project.uv_calls() == []


def test_bench_runs_with_the_python_of_the_environment(project: Project) -> None:
    (project.root / "bench").mkdir()
    # The python of this project is a link to sh.
    (project.root / "bench" / "append.py").write_text('echo "sh got $1"\nexit 7\n')
    result = project.run("bench", "append", "--fast")
    assert (result.returncode, result.stdout) == (7, "sh got --fast\n")


def test_torture_of_a_sink_needs_no_name(project: Project) -> None:
    (project.root / "torture").mkdir()
    for name in ("log", "sinks"):
        (project.root / "torture" / f"{name}.py").write_text('if __name__ == "__main__": pass')
    project.run("setup")
    python = project.root / ".venv" / "bin" / "python"
    python.unlink()
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    for arguments in (["--seeds", "9", "--sink", "x"], ["sinks", "--seeds", "9", "--sink", "x"]):
        assert project.run("torture", *arguments).stdout == "-W ignore -m torture.sinks --seeds 9 --sink x\n"
    assert project.run("torture", "log", "--sink", "x").stdout == "-W ignore -m torture.log --sink x\n"


def test_a_second_setup_does_nothing(project: Project) -> None:
    first = project.run("setup")
    assert first.returncode == 0, first.stderr
    assert project.uv_calls() == WHOLE_SET_UP
    second = project.run("setup")
    assert (second.returncode, second.stderr) == (0, "ready; nothing to do\n")
    assert project.uv_calls() == []


@pytest.mark.parametrize("file", ["requirements.lock", "pyproject.toml"])
def test_a_changed_file_updates_the_environment(project: Project, file: str) -> None:
    project.run("setup")
    project.uv_calls()
    (project.root / file).write_text("changed\n")
    assert project.run("setup").returncode == 0
    assert project.uv_calls() == ["pip sync", "pip install"]


def test_an_environment_without_its_python_is_recreated(project: Project) -> None:
    project.run("setup")
    project.uv_calls()
    (project.root / ".venv" / "bin" / "python").unlink()
    (project.root / ".venv" / "bin" / "python").symlink_to("/gone/python3")
    assert project.run("setup").returncode == 0
    assert project.uv_calls() == WHOLE_SET_UP


def test_a_failed_step_is_reported_and_restarted(project: Project) -> None:
    project.make_uv(sync="echo no such package >&2; exit 3")
    result = project.run("setup")
    assert result.returncode == 3
    assert "no such package\ninstalling packages" in result.stderr
    assert result.stderr.endswith("failed with exit code 3\n")
    assert "Traceback" not in result.stderr
    project.uv_calls()

    (project.root / ".venv" / "incomplete").write_text("")
    project.make_uv()
    assert project.run("setup").returncode == 0
    assert project.uv_calls() == WHOLE_SET_UP
    assert not (project.root / ".venv" / "incomplete").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_setup_ends_its_child_and_is_restarted(project: Project, number: signal.Signals) -> None:
    pid_file = project.root / "pid"
    project.make_uv(sync=f'echo $$ > "{pid_file}.new"; mv "{pid_file}.new" "{pid_file}"; exec sleep 60')
    # Ctrl-C on a terminal signals the whole process group, so it gets its own.
    process = subprocess.Popen(
        project.command("setup"),
        env=project.environ,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(pid_file)
    os.killpg(process.pid, number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr.endswith("interrupted\n")
    assert "Traceback" not in stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)

    project.uv_calls()
    project.make_uv()
    assert project.run("setup").returncode == 0
    assert project.uv_calls() == WHOLE_SET_UP


def test_two_concurrent_setups_install_once(project: Project) -> None:
    started, proceed = project.root / "started", project.root / "proceed"
    project.make_uv(sync=f'touch "{started}"; while [ ! -e "{proceed}" ]; do sleep 0.05; done')
    first = subprocess.Popen(project.command("setup"), env=project.environ)
    wait_for(started)
    second = subprocess.Popen(project.command("setup"), env=project.environ, stderr=subprocess.PIPE, text=True)
    assert second.stderr is not None
    assert "waiting for another ./dev" in second.stderr.readline()
    proceed.touch()
    assert first.wait(30) == 0
    _, rest = second.communicate(timeout=30)
    assert (second.returncode, rest) == (0, "ready; nothing to do\n")
    assert project.uv_calls() == WHOLE_SET_UP


def test_test_stops_at_the_first_failure(project: Project) -> None:
    project.run("setup")
    tools = project.root / ".venv" / "bin"
    for tool in ("ruff", "mypy", "lint-imports", "pytest"):
        (tools / tool).write_text(f'#!/bin/sh\necho "{tool} $@"\n')
        (tools / tool).chmod(0o755)
    passed = project.run("test", "tests/x", "-k", "a b", "--", "-h")
    assert (passed.returncode, passed.stdout) == (0, "pytest tests/x -k a b -- -h\n")
    steps = [line.split(" ...")[0].strip() for line in passed.stderr.splitlines()]
    assert steps == ["ruff check", "ruff format", "mypy", "lint-imports", "pytest"]

    (tools / "mypy").write_text("#!/bin/sh\necho wrong type; exit 4\n")
    failed = project.run("test")
    assert (failed.returncode, failed.stdout) == (4, "")
    assert "wrong type\nmypy failed with exit code 4" in failed.stderr
    assert "lint-imports" not in failed.stderr


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)


# Without pip or a wheel of it, `dev` downloads uv from the index itself.


@pytest.fixture(scope="module")
def dev() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("dev", str(DEV))
    spec = importlib.util.spec_from_loader("dev", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The URL of a local index that requires a name and password, and the folder it serves."""
    folder = tmp_path / "index"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

        def do_GET(self) -> None:
            if self.headers["Authorization"] == "Basic bWU6c2VjcmV0":  # me:secret
                super().do_GET()
            else:
                self.send_error(401)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://me:secret@127.0.0.1:{server.server_port}/", folder
        server.shutdown()


def publish(folder: Path, *versions: str, sha256: str | None = None, attribute: str = "") -> None:
    """Add wheels that print their version to the index; the attribute applies to the last one."""
    (folder / "uv").mkdir()
    links = ['<a href="../uv-99.0.tar.gz#sha256=00">uv-99.0.tar.gz</a><br/>']
    for version in versions:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as wheel:
            wheel.writestr(f"uv-{version}.data/scripts/uv", f"#!/bin/sh\necho {version}\n")
        data = buffer.getvalue()
        digest = sha256 or hashlib.sha256(data).hexdigest()
        mark = attribute if version == versions[-1] else ""
        for machine in (platform.machine(), "pdp11"):
            name = f"uv-{version}-py3-none-manylinux_2_17_{machine}.manylinux2014_{machine}.whl"
            (folder / name).write_bytes(data)
            links.append(f'<a href="../{name}#sha256={digest}" {mark}>{name}</a><br/>')
    (folder / "uv" / "index.html").write_text("\n".join(links))


def test_the_newest_uv_of_the_index_is_downloaded(
    dev: ModuleType, index: tuple[str, Path], tmp_path: Path
) -> None:
    url, folder = index
    publish(folder, "0.9.1", "0.10.2", "0.2.30", "0.11.0", attribute='data-yanked="broken"')
    target = tmp_path / "tools" / "bin" / "uv"
    dev.download_uv(url, target)
    assert subprocess.check_output([target], text=True) == "0.10.2\n"


def test_a_uv_with_a_wrong_hash_is_rejected(dev: ModuleType, index: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = index
    publish(folder, "0.9.1", sha256="0" * 64)
    with pytest.raises(dev.DevError, match="does not match its sha256 in the index"):
        dev.download_uv(url, tmp_path / "uv")
    assert not (tmp_path / "uv").exists()


def test_an_index_without_uv_is_an_error_that_hides_the_password(
    dev: ModuleType, index: tuple[str, Path], tmp_path: Path
) -> None:
    url, folder = index
    with pytest.raises(dev.DevError, match=r"cannot download .*404") as caught:
        dev.download_uv(url, tmp_path / "uv")
    assert "secret" not in str(caught.value)
    publish(folder)
    with pytest.raises(dev.DevError, match=f"lists no wheel for {platform.machine()}"):
        dev.download_uv(url, tmp_path / "uv")


def test_pip_settings_are_passed_to_uv(dev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL", "PIP_CERT", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = http://a%20b/simple\ncert = /ca\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    environ = dev.uv_environment()
    assert environ["UV_DEFAULT_INDEX"] == "http://a%20b/simple"
    assert environ["SSL_CERT_FILE"] == "/ca"
    monkeypatch.setenv("PIP_INDEX_URL", "http://environment/")
    assert dev.uv_environment()["UV_DEFAULT_INDEX"] == "http://environment/"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://own/")
    assert dev.uv_environment()["UV_DEFAULT_INDEX"] == "http://own/"
