"""Settings of a running app."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Report = Callable[[str], None]
"""Shows the user one line about the progress of a start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings for running an app."""

    data: Path
    """Directory for the log, the views and the checkpoints."""
    bootstrap_servers: str | None
    """Address of the log; None starts the embedded one."""
    listen: tuple[str, int]
    """Host and port of the embedded log."""
    http: tuple[str, int] | None
    """Host and port of the console and the HTTP API; None starts neither."""
    master: str
    """Spark master."""
    once: bool = False
    """Stop at the end of the log."""
    store: str | None = None
    """Address of the database of views; takes precedence over the app's own."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings for Spark."""
