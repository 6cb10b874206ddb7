"""The topics that a member subscribes to, by name and by a pattern."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self


class InvalidPattern(ValueError):
    """The pattern is not a valid regular expression."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Topic names, and a pattern that must match a whole name; an empty pattern matches none."""

    names: frozenset[str]
    pattern: str = ""

    @classmethod
    def parse(cls, names: frozenset[str] | None, pattern: str | None) -> Self:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise InvalidPattern(str(error)) from error
        return cls(names or frozenset(), pattern or "")

    def updated(self, names: frozenset[str] | None, pattern: str | None) -> "Subscription":
        """Return the subscription with new names or a new pattern; None keeps the current value."""
        return self.parse(self.names if names is None else names, self.pattern if pattern is None else pattern)

    def topics_of(self, topics: Iterable[str]) -> frozenset[str]:
        """Return those of the topics that match."""
        matching = re.compile(self.pattern) if self.pattern else None
        return frozenset(
            topic for topic in topics if topic in self.names or (matching and matching.fullmatch(topic))
        )
