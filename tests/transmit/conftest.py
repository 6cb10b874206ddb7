"""Fixtures of the broker's tests: Hypothesis without deadlines, and a running broker."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

with warnings.catch_warnings():
    # kafka-python loads its messages with a function that is deprecated from Python 3.11 to 3.12.
    warnings.simplefilter("ignore", DeprecationWarning)
    from headwater.transmit.broker.embedded import Broker

# The machine may be busy, so there are no deadlines.
settings.register_profile(
    "headwater", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("headwater")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data") as running:
        yield running
