"""Client quotas: how fast a user or a client id may produce, fetch or use the broker, and how long it must rest.

Which quota holds is decided as in Kafka, for each kind by itself: the most particular entity that has one. A quota
of a user is shared by all of its clients, one of a client id by all connections of that name.

A bucket is filled by what a client does and leaks at the rate of its quota. What it may hold is what the rate
gives in Kafka's window of ten seconds, so a burst passes; what is above it must have leaked before the client goes
on, so the average is held however long it lasts. Pure: time is passed in.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headwater.errors import InvalidError

DEFAULT = ""
"""As a name: everybody who has no quota of their own. Kafka allows no empty name, so it is free."""

WINDOW_S = 10.0
"""Kafka's quota.window.num - 1 times quota.window.size.seconds, by its defaults."""

REQUEST_REST_S_MAX = 1.0
"""For the time of requests Kafka lets nobody rest for longer than one window at a time."""

METERS_MAX = 10_000
IDLE_S = 3600.0


class QuotaKind(StrEnum):
    """What is limited, by Kafka's names."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"


class Entity(NamedTuple):
    """Whom a quota is for: a user, a client id, or a client id of a user; None for what is not asked."""

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
    """Who shares a limit: the entity of the quota, with the names of those it was found for."""

    kind: QuotaKind
    entity: Entity


@dataclass(slots=True)
class Meter:
    """How full a bucket is, and what came of it."""

    rate: float
    level: float = 0.0
    at: float = 0.0
    throttled: int = 0
    throttled_s: float = 0.0

    def fill(self, amount: float, now: float) -> float:
        """Note that something was used; how long to rest until the bucket holds it."""
        self.level = max(self.level - self.rate * (now - self.at), 0.0) + amount
        self.at = now
        return max(self.level / self.rate - WINDOW_S, 0.0)


def check_quota(key: str, value: float) -> None:
    """An InvalidError if there is no such quota, or not with such a value."""
    if key not in list(QuotaKind):
        raise InvalidError(f"quota {key!r} is not enforced by this broker; there are {', '.join(QuotaKind)}")
    if not value > 0:
        raise InvalidError(f"quota {key} must be greater than 0, not {value:g}")
    if key != QuotaKind.REQUEST and value != int(value):
        raise InvalidError(f"quota {key} is a whole number of bytes a second, not {value:g}")


def precedence(user: str, client_id: str) -> Iterator[tuple[Entity, Entity]]:
    """Where a quota is looked for, the most particular first, and who shares it if it is found there."""
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
    """The quotas of a broker and how far they are used up. Used from its loop only."""

    table: dict[Entity, dict[str, float]] = field(default_factory=dict)
    meters: dict[Bucket, Meter] = field(default_factory=dict)

    def change(self, entity: Entity, values: Mapping[str, float]) -> None:
        """Replace the quotas of an entity; what was used up to now is forgotten."""
        if values:
            self.table[entity] = dict(values)
        else:
            self.table.pop(entity, None)
        self.meters.clear()

    def limit(self, kind: QuotaKind, user: str, client_id: str) -> tuple[float, Entity] | None:
        """The quota that holds for a client, and who shares it; None if there is none."""
        for entity, shared_by in precedence(user, client_id):
            value = self.table.get(entity, {}).get(kind)
            if value is not None:
                return value, shared_by
        return None

    def burst(self, kind: QuotaKind, user: str, client_id: str) -> int | None:
        """How much a client may use at once; None if there is no limit."""
        found = self.limit(kind, user, client_id)
        return None if found is None else max(int(found[0] * WINDOW_S), 1)

    def use(self, kind: QuotaKind, user: str, client_id: str, amount: float, now: float) -> float:
        """Note bytes, or seconds of the broker's time; how many seconds the client has to rest."""
        found = self.limit(kind, user, client_id)
        if found is None:
            return 0.0
        value, shared_by = found
        bucket = Bucket(kind, shared_by)
        meter = self.meters.get(bucket)
        if meter is None:
            self._make_room(now)
            # A hundred percent is one thread's whole time.
            meter = self.meters[bucket] = Meter(rate=value / 100 if kind is QuotaKind.REQUEST else value, at=now)
        rest = meter.fill(amount, now)
        if kind is QuotaKind.REQUEST:
            rest = min(rest, REQUEST_REST_S_MAX)
        if rest > 0:
            meter.throttled += 1
            meter.throttled_s += rest
        return rest

    def _make_room(self, now: float) -> None:
        """Client ids come from outside: forget those that have been idle, and if need be the least used."""
        if len(self.meters) < METERS_MAX:
            return
        self.meters = {bucket: meter for bucket, meter in self.meters.items() if now - meter.at < IDLE_S}
        if len(self.meters) >= METERS_MAX:
            fullest = sorted(self.meters.items(), key=lambda item: item[1].level / item[1].rate, reverse=True)
            self.meters = dict(fullest[: METERS_MAX // 2])


# -- looking for entities -------------------------------------------------------------------------------------


class EntityMatch(NamedTuple):
    """What is wanted of one part of an entity: this name (DEFAULT for the default), or None for any."""

    name: str | None


def matching(
    table: Mapping[Entity, Mapping[str, float]], wanted: Mapping[str, EntityMatch], *, strict: bool
) -> Iterable[tuple[Entity, Mapping[str, float]]]:
    """The entities that have every wanted part; if strict, no other part."""
    for entity, values in sorted(table.items(), key=lambda item: (item[0].user or "", item[0].client_id or "")):
        parts = {kind: name for kind, name in zip(ENTITY_TYPES, entity, strict=True) if name is not None}
        fits = all(
            kind in parts and (match.name is None or match.name == parts[kind]) for kind, match in wanted.items()
        )
        if fits and (not strict or parts.keys() == wanted.keys()):
            yield entity, values


ENTITY_TYPES = ("user", "client-id")
"""The parts of an Entity, by Kafka's names and in its order."""
