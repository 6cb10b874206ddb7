"""Tools for your own tests: transcripts, the simulator, and the contract of sinks.

    from headwater.testing import check_transcripts

    def test_sessions():
        check_transcripts("transcripts/sessions.yaml")

Processing time is a manual clock: no test has to wait. Transcripts run with or without pytest; `SinkContract` and
`Destination` need pytest and hypothesis, and are imported on first use.

transcripts           parse and run a transcript of windows
relation_transcripts  the same for tables and joins
notation              parse windows, triggers and aggregates from text
simulator             run kernels in this process
spark_runner          run kernels as a query of Spark
sink_contract         tests that every sink must pass
sample_batches        small streams and batches for tests of sinks
sample_values         values of every type that a sink may get
process_kill          kill a process while it writes
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import yaml

from headwater.clock import ManualClock
from headwater.errors import HeadwaterError, InvalidError
from headwater.process.windows.kernel import WindowedKernel
from headwater.process.windows.windowing import Windowing
from headwater.testing.relation_transcripts import RelationTranscript, is_relational, read_relational
from headwater.testing.simulator import Simulator
from headwater.testing.transcripts import MakeRunner, Mismatch, Runner, Transcript, read_transcript

if TYPE_CHECKING:
    from headwater.testing.sink_contract import Destination, SinkContract

__all__ = [
    "check_transcripts",
    "load_transcripts",
    "run_transcripts",
    "Verdict",
    "Mismatch",
    "Simulator",
    "WindowedKernel",
    "Windowing",
    "ManualClock",
    "SinkContract",
    "Destination",
]


def __getattr__(name: str) -> Any:
    if name not in ("SinkContract", "Destination"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headwater.testing import sink_contract

    return getattr(sink_contract, name)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a transcript; if it does not hold, `reason` gives the first difference."""

    file: str
    name: str
    holds: bool
    reason: str | None = None


def simulate(windowings: Sequence[Any], schema: pl.Schema) -> Runner:
    """Return a simulator for a chain of computations (windowings or kernels) over rows of this schema."""
    kernels = []
    for windowing in windowings:
        kernel = WindowedKernel.of(windowing, schema) if isinstance(windowing, Windowing) else windowing
        schema = kernel.output_schema
        kernels.append(kernel)
    return Simulator(*kernels)


def _on_spark() -> MakeRunner:
    from headwater.testing.spark_runner import make_runners

    return make_runners()


RUNNERS: dict[str, Callable[[], MakeRunner]] = {"simulator": lambda: simulate, "spark": _on_spark}
"""The runners, by their name in the option `--on`."""


def load_transcripts(path: str | Path) -> list[Transcript | RelationTranscript]:
    """Load the transcripts of a YAML file, one for each document."""
    try:
        documents = list(yaml.safe_load_all(Path(path).read_text()))
    except (OSError, yaml.YAMLError) as error:
        raise InvalidError(f"cannot read transcripts from {str(path)!r}: {error}") from error
    return [_transcript(path, document) for document in documents if document is not None]


def run_transcripts(paths: Iterable[str | Path], *, on: str = "simulator") -> list[Verdict]:
    """Run all transcripts of these files, and return a verdict for each."""
    if on not in RUNNERS:
        raise InvalidError(f"cannot run transcripts on {on!r}; use one of {', '.join(RUNNERS)}")
    make_runner = RUNNERS[on]()
    return [
        _verdict(str(path), transcript, make_runner) for path in paths for transcript in load_transcripts(path)
    ]


def check_transcripts(*paths: str | Path, on: str = "simulator") -> None:
    """Run all transcripts of these files, and raise an `AssertionError` that names those that do not hold."""
    broken = [verdict for verdict in run_transcripts(paths, on=on) if not verdict.holds]
    if broken:
        raise AssertionError("\n".join(f"{verdict.file}: {verdict.reason}" for verdict in broken))


def _transcript(path: str | Path, document: Any) -> Transcript | RelationTranscript:
    if not isinstance(document, Mapping):
        raise InvalidError(f"cannot read transcripts from {str(path)!r}: found {document!r}, not a mapping")
    return read_relational(document) if is_relational(document) else read_transcript(document)


def _verdict(path: str, transcript: Transcript | RelationTranscript, make_runner: MakeRunner) -> Verdict:
    try:
        transcript.check(make_runner)
    except HeadwaterError as error:
        return Verdict(path, transcript.name, holds=False, reason=str(error))
    return Verdict(path, transcript.name, holds=True)
