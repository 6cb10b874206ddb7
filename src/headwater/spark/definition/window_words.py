"""Replaces the arithmetic that Spark writes for a window of time by words.

time window of at: 1 minute, every 1 minute, offset 0
"""

import re
from collections.abc import Callable

_UNITS = (
    ("day", 86_400_000_000),
    ("hour", 3_600_000_000),
    ("minute", 60_000_000),
    ("second", 1_000_000),
    ("millisecond", 1000),
)
_START = "named_struct('start', "
_CONVERSION = "precisetimestampconversion("
_PLACEMENT = re.compile(
    r"CASE WHEN \(\(\(precisetimestampconversion\((.*?)\) - (-?\d+)L\) % (\d+)L\) <", re.DOTALL
)
_ADDED = re.compile(r"\+ (\d+)L")
_SESSION = re.compile(
    r"'start', precisetimestampconversion\(precisetimestampconversion\((.*?)\)\), 'end'", re.DOTALL
)
_GAP = re.compile(r"CAST\('([^']*)' AS INTERVAL\)|INTERVAL '([^']*)'")


def name_windows(text: str) -> str:
    """Replace each window in an expression by words."""
    return _replace_calls(text, _START, _window_words)


def duration_words(micros: int) -> str:
    """Return a duration in its largest whole unit.

    >>> duration_words(60_000_000), duration_words(90_000_000), duration_words(0)
    ('1 minute', '90 seconds', '0')
    """
    if micros == 0:
        return "0"
    for unit, size in _UNITS:
        if micros % size == 0:
            return f"{micros // size} {unit}" + ("" if abs(micros // size) == 1 else "s")
    return f"{micros} microseconds"


def _window_words(call: str) -> str:
    if _CONVERSION not in call:
        return call
    placed, added = _PLACEMENT.search(call), _ADDED.findall(call)
    if placed and added:
        time, offset, period = placed.groups()
        size = duration_words(int(added[-1]))
        return (
            f"time window of {time}: {size}, every {duration_words(int(period))}, "
            f"offset {duration_words(int(offset))}"
        )
    session = _SESSION.search(call)
    if session:
        gap = _GAP.search(call)
        return f"session window of {session[1]}: gap {(gap[1] or gap[2]) if gap else 'by row'}"
    return call


def _replace_calls(text: str, opening: str, replace: Callable[[str], str]) -> str:
    """Replace each call that begins with `opening`, up to its closing parenthesis."""
    at = text.find(opening)
    if at < 0:
        return text
    depth, end = 0, len(text)
    for number in range(text.index("(", at), len(text)):
        depth += {"(": 1, ")": -1}.get(text[number], 0)
        if depth == 0:
            end = number + 1
            break
    return text[:at] + replace(text[at:end]) + _replace_calls(text[end:], opening, replace)
