"""A Spark cluster of one master and one worker from the installed PySpark, whose executors can be killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from support.processes import descendants, free_port

PATIENCE_S = 60.0
_CLASSES = "org.apache.spark.deploy"


class SparkCluster:
    """Two processes on this machine. The worker starts an app's executors and replaces those that are killed."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.address = f"spark://127.0.0.1:{port}"
        self._folder = folder
        self._log = folder / "cluster.txt"
        folder.mkdir(parents=True, exist_ok=True)
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._start("master.Master", "--port", str(port))
            self._wait_for("New state: ALIVE")
            work = str(folder / "work")
            self._worker = self._start("worker.Worker", self.address, "--cores", "2", "--memory", "2g", "-d", work)
            self._wait_for("Successfully registered with master")
        except BaseException:
            self.close()
            raise

    def executors(self) -> list[int]:
        """Return the process ids of the running executors."""
        return [pid for pid, name in descendants(self._worker.pid) if name == "java"]

    def python_workers(self) -> list[int]:
        """Return the process ids of all executors' Python workers."""
        return [pid for pid, name in descendants(self._worker.pid) if name != "java"]

    def close(self) -> None:
        for process in self._processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        import pyspark

        from headwater.spark.session.java import find_java

        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "JAVA_HOME": str(find_java(os.environ).chosen.home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": os.environ.get("SPARK_SUBMIT_OPTS", ""),
            "PYSPARK_PYTHON": sys.executable,
        }
        address = ["--host", "127.0.0.1", "--webui-port", "0"]
        with self._log.open("ab") as output:
            process = subprocess.Popen(
                [home / "bin" / "spark-class", f"{_CLASSES}.{name}", *arguments, *address],
                cwd=self._folder, env=environment, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def _wait_for(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while text not in self._log.read_text():
            assert time.monotonic() < deadline, f"the Spark cluster did not start: {self._log.read_text()[-2000:]}"
            time.sleep(0.1)
