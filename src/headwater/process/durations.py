"""Parse durations such as `"1 minute"`, `"30 seconds"` and `"1 hour 30 minutes"`."""

import re
from datetime import timedelta

from headwater.errors import InvalidError

_UNITS = {
    "microsecond": timedelta(microseconds=1),
    "millisecond": timedelta(milliseconds=1),
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
}
LONGEST = timedelta(days=3_652_500)
"""Ten thousand years: a few of them, added to a time in microseconds, fit into 64 bits."""

_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)


def parse_duration(text: str) -> timedelta:
    """Parse a duration of one or more parts, each a number and a unit.

    >>> parse_duration("1 hour 30 minutes")
    datetime.timedelta(seconds=5400)
    """
    total = timedelta()
    at = 0
    while match := _PART.match(text, at):
        unit = _UNITS.get(match[2].lower().removesuffix("s"))
        if unit is None:
            break
        try:
            total += (float(match[1]) if "." in match[1] else int(match[1])) * unit
        except OverflowError:
            total = timedelta.max
            break
        at = match.end()
    if total > LONGEST:
        raise InvalidError(f"duration {text!r} is too long: the longest is {LONGEST.days} days")
    if at == 0 or text[at:].strip():
        raise InvalidError(
            f"cannot read duration {text!r}: expected a number and a unit, such as '1 minute' or '30 seconds'"
        )
    if total <= timedelta():
        raise InvalidError(f"duration {text!r} must be greater than zero")
    return total


def micros(text: str) -> int:
    """Parse a duration to microseconds, the unit of all times in kernels.

    >>> micros("2 milliseconds")
    2000
    """
    return parse_duration(text) // timedelta(microseconds=1)
