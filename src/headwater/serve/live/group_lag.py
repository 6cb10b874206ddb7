"""The groups that read the log: how far behind they are, and who is about to lose records to retention.

Thread-safe: one thread samples, any thread reads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headwater.errors import HeadwaterError
from headwater.record import TopicPartition
from headwater.transmit.client.lag import GroupPosition

SAMPLE_EVERY_S = 5.0  # asking for all groups costs more than for offsets, and lags change slowly to the eye


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """A group, its state, and where it stands in each partition it has begun."""

    name: str
    kind: str
    state: str
    positions: Mapping[TopicPartition, GroupPosition]

    @property
    def lag_records(self) -> int:
        return sum(position.lag_records for position in self.positions.values())

    @property
    def at_risk_records(self) -> int:
        return sum(position.at_risk_records or 0 for position in self.positions.values())


class GroupLags:
    """The groups of a log, as `read_groups` tells over time."""

    def __init__(self, read_groups: Callable[[], Sequence[GroupLag]]) -> None:
        self._read_groups = read_groups
        self._groups: tuple[GroupLag, ...] = ()

    def sample(self) -> None:
        """Ask for the groups; where the log does not answer, the last answer stays (topics say that it is old)."""
        try:
            found = self._read_groups()
        except (HeadwaterError, OSError):
            return
        self._groups = tuple(sorted(found, key=lambda group: group.name))

    def groups(self) -> tuple[GroupLag, ...]:
        """The groups of the last sample, by name."""
        return self._groups
