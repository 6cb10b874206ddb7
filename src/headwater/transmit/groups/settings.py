"""Configs of a group, with Kafka's names: allowed values, defaults, and typed access.

Share groups use the names of KIP-932 and KIP-1191, consumer groups those of KIP-848. Pure; `store` stores them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headwater.errors import InvalidError
from headwater.transmit.configs import TABLES, ConfigResource
from headwater.transmit.groups.share.share_partition import ShareLimits

OFFSET_RESET = "share.auto.offset.reset"
LOCK_MS = "share.record.lock.duration.ms"
DELIVERIES = "share.delivery.count.limit"
ISOLATION = "share.isolation.level"
LOCKS = "share.partition.max.record.locks"
SHARE_SESSION_MS = "share.session.timeout.ms"
SHARE_HEARTBEAT_MS = "share.heartbeat.interval.ms"
CONSUMER_SESSION_MS = "consumer.session.timeout.ms"
CONSUMER_HEARTBEAT_MS = "consumer.heartbeat.interval.ms"
DEADLETTER_TOPIC = "errors.deadletterqueue.topic.name"
DEADLETTER_COPY = "errors.deadletterqueue.copy.record.enable"

DEFAULTS = {name: config.default for name, config in TABLES[ConfigResource.GROUP].items()}

_RANGES = {
    LOCK_MS: (100, 3_600_000),
    DELIVERIES: (1, 100),
    LOCKS: (1, 10_000),
    SHARE_SESSION_MS: (100, 3_600_000),
    SHARE_HEARTBEAT_MS: (50, 60_000),
    CONSUMER_SESSION_MS: (100, 3_600_000),
    CONSUMER_HEARTBEAT_MS: (50, 60_000),
}
_BY_DURATION = "by_duration:"
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Typed access to a group's configs."""

    configs: Mapping[str, str]

    def _text(self, name: str) -> str:
        return self.configs.get(name, DEFAULTS[name])

    def number(self, name: str) -> int:
        return int(self._text(name))

    @property
    def limits(self) -> ShareLimits:
        return ShareLimits(
            lock_s=self.number(LOCK_MS) / 1000,
            deliveries_max=self.number(DELIVERIES),
            in_flight_max=self.number(LOCKS),
        )

    @property
    def deadletter_topic(self) -> str:
        return self._text(DEADLETTER_TOPIC)

    @property
    def copies_record(self) -> bool:
        """Return whether a dead letter contains a copy of the record, or only its topic, partition and offset."""
        return self._text(DEADLETTER_COPY) == "true"

    @property
    def reads_committed(self) -> bool:
        """Return whether a share group skips records of aborted and open transactions."""
        return self._text(ISOLATION) == "read_committed"

    @property
    def reset(self) -> str | int:
        """The start of a new share group: `earliest`, `latest`, or a number of milliseconds before now."""
        text = self._text(OFFSET_RESET)
        return duration_ms(text.removeprefix(_BY_DURATION)) if text.startswith(_BY_DURATION) else text


def check_config(name: str, value: str) -> None:
    """Raise InvalidError if there is no such config, or if its value is not allowed."""
    if name not in DEFAULTS:
        raise InvalidError(f"cannot set {name!r}: unknown group config, expected one of {', '.join(DEFAULTS)}")
    if name in _RANGES:
        low, high = _RANGES[name]
        if not value.isdigit() or not low <= int(value) <= high:
            raise InvalidError(f"cannot set {name} to {value!r}: expected a whole number from {low} to {high}")
    elif name == DEADLETTER_COPY and value not in ("true", "false"):
        raise InvalidError(f"cannot set {name} to {value!r}: expected true or false")
    elif name == OFFSET_RESET and value.startswith(_BY_DURATION):
        duration_ms(value.removeprefix(_BY_DURATION))
    elif name == OFFSET_RESET and value not in ("earliest", "latest"):
        raise InvalidError(f"cannot set {name} to {value!r}: expected earliest, latest or by_duration:PT1H")


def duration_ms(text: str) -> int:
    """Parse an ISO 8601 duration.

    >>> duration_ms("PT1H30M")
    5400000
    """
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        raise InvalidError(
            f"cannot read duration {text!r}: expected days, hours, minutes, seconds as in P1DT2H3M4S"
        )
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
