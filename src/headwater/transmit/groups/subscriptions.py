"""What a member wants to read: topics by name, and by a pattern."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self


class InvalidPattern(ValueError):
    """It cannot be read as a regular expression."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Names and a pattern, which must match the whole name; an empty pattern matches none."""

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
        """As it is after a member has said something new; None leaves a part as it was."""
        return self.parse(self.names if names is None else names, self.pattern if pattern is None else pattern)

    def topics_of(self, there: Iterable[str]) -> frozenset[str]:
        """Those of the topics that it wants."""
        matching = re.compile(self.pattern) if self.pattern else None
        return frozenset(
            topic for topic in there if topic in self.names or (matching and matching.fullmatch(topic))
        )
