"""Clocks, passed to the broker and the pipelines so that tests can control the time.

Waits with a deadline in clients, Spark sessions and commands use `time.monotonic()` directly.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time for timestamps, monotonic time for timeouts."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The clocks of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only by calls of `advance`; for tests.

    >>> clock = ManualClock(start_ms=1_000)
    >>> clock.advance(2.5)
    >>> clock.now_ms()
    3500
    """

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._now_ms / 1000

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"cannot advance a clock by {seconds} s: time cannot go back")
        self._now_ms += round(seconds * 1000)
