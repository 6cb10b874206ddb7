"""The settings of a pipeline: its log, and the places of its checkpoints."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """The log that a pipeline reads and its data directory; with `once` it stops at the end of the log."""

    bootstrap_servers: str
    data: Path
    once: bool = False

    @property
    def checkpoints(self) -> Path:
        return self.data / "checkpoints"

    def checkpoint(self, generation: str) -> Path:
        return self.checkpoints / generation
