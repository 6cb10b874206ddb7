"""Where in event time: the windows that events fall into."""

from dataclasses import dataclass
from datetime import timedelta

from headwater.process.durations import parse_duration


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size that follow each other without gap or overlap, aligned to 1970 in UTC.

    A window holds the events from its start up to, not including, its end.
    """

    size: str

    def __post_init__(self) -> None:
        parse_duration(self.size)

    @property
    def duration(self) -> timedelta:
        return parse_duration(self.size)
