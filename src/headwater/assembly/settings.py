"""Settings of a running app."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwater.errors import InvalidError

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
    spark: Any = None
    """A user's SparkSession to run on, in place of one of our own at `master`."""
    is_temporary: bool = False
    """Remove the data directory at the end."""

    @classmethod
    def of(
        cls,
        *,
        data: str | Path | None = None,
        listen: str = "127.0.0.1:0",
        http: str | None = None,
        **others: Any,
    ) -> "RunSettings":
        """Make settings from the arguments of `App.run`; without `data`, the directory is temporary."""
        return cls(
            data=Path(tempfile.mkdtemp(prefix="headwater-") if data is None else data),
            is_temporary=data is None,
            listen=parse_address(listen, "listen"),
            http=None if http is None else parse_address(http, "http"),
            **others,
        )


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Return host and port; raise an InvalidError that names the option if the text is not an address."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InvalidError(f"cannot read {option} {text!r}: expected host:port, such as 127.0.0.1:9092")
    return host.strip("[]"), int(port)
