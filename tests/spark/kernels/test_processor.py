"""Spark reads an operator's state variables in a new process, which need not import the kernel."""

import json
import subprocess
import sys

from pyspark import cloudpickle

from headwater.process.windows.kernel import WindowedKernel
from headwater.spark.kernels.processor import LazyProcessor

PROGRAM = """
import json, pickle, sys

class Handle:
    def getValueState(self, name, schema):
        names.append(name)

    def getMapState(self, name, key, value):
        names.append(name)

names = []
pickle.loads(sys.stdin.buffer.read()).init(Handle())
heavy_modules = ("pandas", "polars", "pyarrow", "headwater.process.windows.kernel")
heavy = [name for name in heavy_modules if name in sys.modules]
print(json.dumps([names, heavy]))
"""


def test_the_state_is_declared_without_the_imports_of_a_kernel() -> None:
    pickled = cloudpickle.dumps(LazyProcessor(WindowedKernel))  # type: ignore[arg-type]
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=pickled, capture_output=True, check=True)
    assert json.loads(done.stdout) == [["manifest", "pieces"], []]
