"""A pytest plugin in whose presence kafka-python's own integration tests run against the broker at KAFKA_URI.

The sdist has the tests, but neither `test/__init__.py` nor `test/service.py`, which starts Apache Kafka. Here the
package `test` is made from the folder, and the service is one that is running already. Loaded with `-p`, in the
sdist's folder; it is told all else by the environment variables that the tests know: KAFKA_URI, KAFKA_VERSION and
KAFKA_ROOT.
"""

import sys
import types
from pathlib import Path
from typing import Any


class ExternalService:
    """The broker that runs already: there is nothing to start, to stop or to show of it."""

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
    """What a test would start by itself, which is Apache Kafka in another setting: TLS or SASL."""

    def __init__(self, *arguments: Any) -> None:
        raise RuntimeError(
            "this test starts an Apache Kafka of its own, with a transport that Headwater does not have"
        )


def _module(name: str, **names: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(names)
    sys.modules[name] = module
    return module


# Without __init__.py Python would take its own package `test` instead.
_module("test", __path__=[str(Path.cwd() / "test")])
_module("test.service", ExternalService=ExternalService, SpawnedService=SpawnedService)
