"""Streaming queries without Spark, for tests of the parts of a pipeline."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from pyspark.errors import PySparkException


def progress(batch: int, *, rows: int = 1) -> Any:
    """Build the progress of a batch that read no topic."""
    return SimpleNamespace(
        batchId=batch,
        timestamp=f"2026-11-15T12:00:{batch:06.3f}Z",
        numInputRows=rows,
        inputRowsPerSecond=1.0,
        processedRowsPerSecond=1.0,
        durationMs={},
        sources=[],
        json=f"batch {batch}",
    )


@dataclass
class FakeStreamingQuery:
    """A streaming query that does what the test sets."""

    isActive: bool = True  # noqa: N815 - Spark's name
    error: str | None = None
    recentProgress: list[Any] = field(default_factory=list)  # noqa: N815 - Spark's name

    @property
    def lastProgress(self) -> Any:  # noqa: N802 - Spark's name
        return self.recentProgress[-1] if self.recentProgress else None

    def exception(self) -> PySparkException | None:
        return None if self.error is None else PySparkException(self.error)

    def stop(self) -> None:
        self.isActive = False

    def fail(self, error: str) -> None:
        self.isActive, self.error = False, error


@dataclass
class FakeStarts:
    """Starts a new fake query with each call, and keeps them all."""

    started: list[FakeStreamingQuery] = field(default_factory=list)

    def __call__(self) -> Any:
        self.started.append(FakeStreamingQuery())
        return self.started[-1]

    @property
    def last(self) -> FakeStreamingQuery:
        return self.started[-1]
