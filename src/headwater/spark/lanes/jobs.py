"""Limits the time of what a lane runs on Spark: functions and expressions of the user's, which may never end.

Jobs are cancelled. Steps that are no job run in a thread of Java's that cannot be stopped, so they are abandoned.
"""

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from pyspark import SparkContext

CANCEL_EVERY_S = 1.0
"""A job that begins after the limit, because its plan took long for example, is cancelled as well."""

T = TypeVar("T")


class TookTooLongError(Exception):
    """A job was cancelled, or a call abandoned, because it took too long."""


class LaneJobs:
    """The Spark jobs of one lane, which its thread runs one after the other."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._group = f"headwater-lane-{uuid.uuid4().hex}"
        self._is_cancelled = False
        self._caller: _Caller | None = None

    def bind(self) -> None:
        """Let the jobs of the current thread belong to the lane."""
        self._context.setJobGroup(self._group, "the queries of a lane", interruptOnCancel=True)

    @contextmanager
    def within(self, seconds: float | None) -> Iterator[None]:
        """Raise TookTooLongError if the jobs of the block take longer, or are cancelled; None is no limit."""
        self._check()
        ended, expired = threading.Event(), threading.Event()
        watcher = threading.Thread(target=self._watch, args=[seconds, ended, expired], daemon=True)
        if seconds is not None:
            watcher.start()
        try:
            yield
        except Exception as error:
            self._check()
            if expired.is_set():
                raise TookTooLongError(f"it took more than {seconds:g} s") from error
            raise
        finally:
            ended.set()
            if seconds is not None:
                watcher.join()  # It must not cancel the next job.

    def _watch(self, seconds: float, ended: threading.Event, expired: threading.Event) -> None:
        """Cancel the jobs that run after a time, until the block has ended."""
        if ended.wait(seconds):
            return
        expired.set()
        self._context.cancelJobGroup(self._group)
        while not ended.wait(CANCEL_EVERY_S):
            self._context.cancelJobGroup(self._group)

    def call(self, function: Callable[[], T], seconds: float | None) -> T:
        """Call a function that runs no job; raise TookTooLongError if it takes longer, while it goes on.

        None is no limit.
        """
        self._check()
        if seconds is None:
            return function()
        if self._caller is None:
            self._caller = _Caller(self.bind)
        done = self._caller.call(function)
        try:
            found: T = done.result(seconds)
        except TimeoutError as error:
            if done.done():
                raise
            self.close()
            raise TookTooLongError(f"it took more than {seconds:g} s") from error
        except CancelledError:
            self._check()
            raise
        return found

    def close(self) -> None:
        """Let the thread for calls end, after its call if there is one."""
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.close()

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
        """Cancel the jobs of the lane and abandon its call, and let it run no others."""
        self._is_cancelled = True
        self._context.cancelJobGroup(self._group)
        if (caller := self._caller) is not None:
            caller.abandon()

    def _check(self) -> None:
        if self._is_cancelled:
            raise TookTooLongError("it was still running when it was to stop")


class _Caller:
    """Calls functions one after the other, in a thread for which Python does not wait when it exits."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._last: Future[Any] = Future()
        threading.Thread(target=self._run, args=[prepare], name="headwater-lane-steps", daemon=True).start()

    def call(self, function: Callable[[], Any]) -> Future[Any]:
        done = self._last = Future()
        self._calls.put((function, done))
        return done

    def abandon(self) -> None:
        """End the wait for the last call with a CancelledError."""
        self._last.cancel()

    def close(self) -> None:
        self._calls.put(None)

    def _run(self, prepare: Callable[[], None]) -> None:
        prepare()
        while (wanted := self._calls.get()) is not None:
            function, done = wanted
            with suppress(InvalidStateError):  # It was abandoned.
                try:
                    done.set_result(function())
                except BaseException as error:
                    done.set_exception(error)
