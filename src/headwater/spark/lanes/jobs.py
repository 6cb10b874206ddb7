"""Ends the Spark jobs of a lane that take too long: functions of the user's run in them, and may never return."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext


class TookTooLongError(Exception):
    """A job was cancelled because it took too long."""


class LaneJobs:
    """The Spark jobs of one lane, which its thread runs one after the other."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._group = f"headwater-lane-{uuid.uuid4().hex}"
        self._is_cancelled = False

    def bind(self) -> None:
        """Let the jobs of the current thread belong to the lane."""
        self._context.setJobGroup(self._group, "the queries of a lane", interruptOnCancel=True)

    @contextmanager
    def within(self, seconds: float | None) -> Iterator[None]:
        """Raise TookTooLongError if the jobs of the block take longer, or are cancelled; None is no limit."""
        self._check()
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self._context.cancelJobGroup(self._group)

        timer = None if seconds is None else threading.Timer(seconds, expire)
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            yield
        except Exception as error:
            self._check()
            if expired.is_set():
                raise TookTooLongError(f"it took more than {seconds:g} s") from error
            raise
        finally:
            if timer is not None:
                timer.cancel()
                timer.join()  # It must not cancel the next job.

    @contextmanager
    def cancelled_after(self, seconds: float) -> Iterator[None]:
        """Cancel the jobs of the lane, and let it run no others, if the block takes longer."""
        timer = threading.Timer(seconds, self.cancel)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def cancel(self) -> None:
        """Cancel the jobs of the lane, and let it run no others."""
        self._is_cancelled = True
        self._context.cancelJobGroup(self._group)

    def _check(self) -> None:
        if self._is_cancelled:
            raise TookTooLongError("it was still running when it was to stop")
