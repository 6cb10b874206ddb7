"""Client quotas: rates at which a user or client id may produce, fetch or use the broker, and the throttle times.

The quota of a client is found as in Kafka, for each kind separately: that of the most specific entity that has
one. A quota of a user is shared by all its clients, a quota of a client id by all connections with that id.

Each quota has a leaky bucket, which fills with the client's usage and drains at the rate of the quota. Its
capacity is what the rate yields in Kafka's window of ten seconds, which allows bursts. If it overflows, the client
is throttled until the excess has drained, which keeps the average rate. Pure: the time is passed in.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headwater.errors import InvalidError

DEFAULT = ""
"""The name of the default entity, for all without a quota of their own; Kafka allows no empty names."""

WINDOW_S = 10.0
"""Kafka's (quota.window.num - 1) times quota.window.size.seconds, with its defaults."""

REQUEST_THROTTLE_S_MAX = 1.0
"""For request time, Kafka throttles for at most one window at a time."""

METERS_MAX = 10_000
IDLE_S = 3600.0


class QuotaKind(StrEnum):
    """The limited resource, with Kafka's names."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"


class Entity(NamedTuple):
    """The entity of a quota: a user, a client id, or a client id of a user; None for the part that is not set."""

    user: str | None = None
    client_id: str | None = None

    def __str__(self) -> str:
        named = (("user", self.user), ("client-id", self.client_id))
        return ", ".join(
            f"default {kind}" if name == DEFAULT else f"{kind} {name!r}"
            for kind, name in named
            if name is not None
        )


class Bucket(NamedTuple):
    """The clients that share a limit: the quota's entity, with the actual names in place of defaults."""

    kind: QuotaKind
    entity: Entity


@dataclass(slots=True)
class Meter:
    """The level of a bucket, and statistics of its throttling."""

    rate: float
    level: float = 0.0
    at: float = 0.0
    throttled: int = 0
    throttled_s: float = 0.0

    def fill(self, amount: float, now: float) -> float:
        """Add usage; return the throttle time in seconds until the bucket no longer overflows."""
        self.level = max(self.level - self.rate * (now - self.at), 0.0) + amount
        self.at = now
        return max(self.level / self.rate - WINDOW_S, 0.0)


def check_quota(key: str, value: float) -> None:
    """Raise InvalidError if the quota does not exist, or its value is not allowed."""
    if key not in list(QuotaKind):
        raise InvalidError(f"quota {key!r} is not enforced by this broker, expected one of {', '.join(QuotaKind)}")
    if not value > 0:
        raise InvalidError(f"quota {key} must be greater than 0, not {value:g}")
    if key != QuotaKind.REQUEST and value != int(value):
        raise InvalidError(f"quota {key} must be a whole number of bytes per second, not {value:g}")


def precedence(user: str, client_id: str) -> Iterator[tuple[Entity, Entity]]:
    """Yield the entities to search for a quota, most specific first, each with the entity that shares it."""
    both, of_user, of_client = Entity(user, client_id), Entity(user), Entity(None, client_id)
    yield both, both
    yield Entity(user, DEFAULT), both
    yield of_user, of_user
    yield Entity(DEFAULT, client_id), both
    yield Entity(DEFAULT, DEFAULT), both
    yield Entity(DEFAULT), of_user
    yield of_client, of_client
    yield Entity(None, DEFAULT), of_client


@dataclass(slots=True)
class Quotas:
    """The quotas of a broker and their usage. Used from its loop only."""

    table: dict[Entity, dict[str, float]] = field(default_factory=dict)
    meters: dict[Bucket, Meter] = field(default_factory=dict)

    def change(self, entity: Entity, values: Mapping[str, float]) -> None:
        """Replace the quotas of an entity; all usage is reset."""
        if values:
            self.table[entity] = dict(values)
        else:
            self.table.pop(entity, None)
        self.meters.clear()

    def limit(self, kind: QuotaKind, user: str, client_id: str) -> tuple[float, Entity] | None:
        """Return the quota of a client and the entity that shares it; None if it has none."""
        for entity, shared_by in precedence(user, client_id):
            value = self.table.get(entity, {}).get(kind)
            if value is not None:
                return value, shared_by
        return None

    def burst(self, kind: QuotaKind, user: str, client_id: str) -> int | None:
        """Return how much a client may use at once; None if it has no quota."""
        found = self.limit(kind, user, client_id)
        return None if found is None else max(int(found[0] * WINDOW_S), 1)

    def use(self, kind: QuotaKind, user: str, client_id: str, amount: float, now: float) -> float:
        """Add usage in bytes, or seconds of request time; return the throttle time in seconds."""
        found = self.limit(kind, user, client_id)
        if found is None:
            return 0.0
        value, shared_by = found
        bucket = Bucket(kind, shared_by)
        meter = self.meters.get(bucket)
        if meter is None:
            self._drop_meters(now)
            # 100 percent is the full time of one thread.
            meter = self.meters[bucket] = Meter(rate=value / 100 if kind is QuotaKind.REQUEST else value, at=now)
        throttle_s = meter.fill(amount, now)
        if kind is QuotaKind.REQUEST:
            throttle_s = min(throttle_s, REQUEST_THROTTLE_S_MAX)
        if throttle_s > 0:
            meter.throttled += 1
            meter.throttled_s += throttle_s
        return throttle_s

    def _drop_meters(self, now: float) -> None:
        """Bound the number of meters, since clients choose their ids: drop idle ones, then the emptiest half."""
        if len(self.meters) < METERS_MAX:
            return
        self.meters = {bucket: meter for bucket, meter in self.meters.items() if now - meter.at < IDLE_S}
        if len(self.meters) >= METERS_MAX:
            fullest = sorted(self.meters.items(), key=lambda item: item[1].level / item[1].rate, reverse=True)
            self.meters = dict(fullest[: METERS_MAX // 2])


# -- search ---------------------------------------------------------------------------------------------------


class EntityMatch(NamedTuple):
    """A condition on one part of an entity: a name (DEFAULT for the default entity), or None for any."""

    name: str | None


def matching(
    table: Mapping[Entity, Mapping[str, float]], conditions: Mapping[str, EntityMatch], *, strict: bool
) -> Iterable[tuple[Entity, Mapping[str, float]]]:
    """Yield the entities that match all conditions; if `strict`, they must have no other parts."""
    for entity, values in sorted(table.items(), key=lambda item: (item[0].user or "", item[0].client_id or "")):
        parts = {kind: name for kind, name in zip(ENTITY_TYPES, entity, strict=True) if name is not None}
        fits = all(
            kind in parts and (match.name is None or match.name == parts[kind])
            for kind, match in conditions.items()
        )
        if fits and (not strict or parts.keys() == conditions.keys()):
            yield entity, values


ENTITY_TYPES = ("user", "client-id")
"""The parts of an Entity in order, with Kafka's names."""
