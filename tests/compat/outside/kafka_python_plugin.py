"""A pytest plugin that runs kafka-python's own integration tests against the broker at KAFKA_URI.

The sdist contains the tests, but neither `test/__init__.py` nor `test/service.py`, which starts Apache Kafka. This
plugin creates the package `test` from the folder, with a service that is already running. Load it with `-p` in the
sdist's folder. The tests read the environment variables KAFKA_URI, KAFKA_VERSION and KAFKA_ROOT.
"""

import sys
import types
from pathlib import Path
from typing import Any


class ExternalService:
    """A broker that is already running: it cannot be started or stopped, and has no logs to dump."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    def open(self) -> None: ...

    def close(self) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def dump_logs(self) -> None: ...

    def wait_for(self, pattern: str, timeout: float = 30) -> bool:
        return True


class SpawnedService:
    """An Apache Kafka that a test would start itself, with TLS or SASL; not supported here."""

    def __init__(self, *arguments: Any) -> None:
        raise RuntimeError(
            "this test starts its own Apache Kafka with TLS or SASL, which Headwater does not support"
        )


def _module(name: str, **names: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(names)
    sys.modules[name] = module
    return module


# Without __init__.py, Python would import its own package `test` instead.
_module("test", __path__=[str(Path.cwd() / "test")])
_module("test.service", ExternalService=ExternalService, SpawnedService=SpawnedService)
