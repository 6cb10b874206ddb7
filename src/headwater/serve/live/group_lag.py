"""Consumer groups of the log: their lag, and the records that retention will delete before they are read.

Thread-safe: one thread samples, any thread reads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headwater.errors import HeadwaterError
from headwater.record import TopicPartition
from headwater.transmit.client.lag import GroupPosition

SAMPLE_EVERY_S = 5.0  # reading all groups costs more than reading offsets, and lag is not watched by the second


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """A group, its state, and its position in each partition it has committed an offset for."""

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
    """The groups of a log, sampled with `read_groups`."""

    def __init__(self, read_groups: Callable[[], Sequence[GroupLag]]) -> None:
        self._read_groups = read_groups
        self._groups: tuple[GroupLag, ...] = ()

    def sample(self) -> None:
        """Read the groups; if the log does not respond, keep the last sample (topics are marked as stale then)."""
        try:
            found = self._read_groups()
        except (HeadwaterError, OSError):
            return
        self._groups = tuple(sorted(found, key=lambda group: group.name))

    def groups(self) -> tuple[GroupLag, ...]:
        """Return the groups of the last sample, ordered by name."""
        return self._groups
