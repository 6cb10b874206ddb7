"""What a view can be asked, written down apart from any database. Pure.

A **position** is the number of changes a view has had: it is 0 before the first, grows by one with each and never
repeats. Rows as of a position are what the changes up to it add up to. A batch is committed whole, so what is read
without `as_of` always stands between two batches. A rebuilt view goes on counting where the one before it stood.

A **token** is a position with the store it belongs to, as text (`5f3a09c2-42`): what a reader keeps to go on from.
A position of one store means nothing in another, and a token says so instead of giving wrong rows.

A condition is `COLUMN OPERATOR VALUE`; COLUMN may be a field of a struct (`window.start`), or stand in backticks:

    amount >= 10       =  !=  <  <=  >  >=
    product ^= green   text that begins so
    product in ["tea", "milk"]
    closed_at = null   no value; "null" in quotes is the text
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headwater.errors import InvalidError

LIMIT = 1000
IN_MAX = 500


class Operator(StrEnum):
    """How a column and a value are compared."""

    EQUAL = "="
    NOT_EQUAL = "!="
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="
    BEGINS = "^="
    IN = "in"


@dataclass(frozen=True, slots=True)
class Condition:
    """What must hold of a row; text as a value is read as the column's type."""

    column: str
    operator: Operator
    value: Any


@dataclass(frozen=True, slots=True)
class Order:
    """A column to sort by; rows without a value come first, and last if the order is descending."""

    column: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a page ended: the order it was read in, and the last row's values in it."""

    by: tuple[Order, ...]
    at: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which rows of a view are wanted; without an `order` in the key's, or the best fitting first in a search."""

    where: tuple[Condition, ...] = ()
    search: str | None = None
    order: tuple[Order, ...] = ()
    limit: int = LIMIT
    after: Cursor | None = None
    as_of: int | None = None

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise InvalidError(f"cannot read {self.limit} rows: limit must be at least 1")
        if self.search is not None and self.as_of is not None:
            raise InvalidError("cannot search rows as of a position: words are kept of the present rows only")
        if self.search is not None and self.after is not None and not self.order:
            raise InvalidError("cannot page through rows by relevance: give order_by with a cursor")


@dataclass(frozen=True, slots=True)
class AtLeast:
    """What a view must have seen before it is read: a position of its own, and records of topics by offset."""

    position: int | None = None
    offsets: tuple[tuple[str, int, int], ...] = ()
    """Topic, partition, and the offset of the last record that must be in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Rows, the position at which they were read, and the cursor for those behind them if there are more."""

    rows: list[dict[str, Any]]
    position: int
    token: str
    next: str | None = None


# -- as people write it -----------------------------------------------------------------------------------------

_CONDITION = re.compile(
    r"\s*(?:`([^`]+)`|([^\s<>=!^`]+))"  # the column
    r"\s*(<=|>=|!=|\^=|=|<|>|(?<=[\s`])in(?=[\s\[]))"
    r"\s*(.*)",
    re.DOTALL,
)


def parse_condition(text: str) -> Condition:
    """Read a condition.

    >>> parse_condition("amount >= 10")
    Condition(column='amount', operator=<Operator.AT_LEAST: '>='>, value='10')
    """
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise InvalidError(
            f"cannot read the condition {text!r}: expected COLUMN OPERATOR VALUE, as in 'amount >= 10'; "
            f"operators are {' '.join(Operator)}"
        )
    quoted, plain, operator, value = found.groups()
    return Condition(quoted or plain, Operator(operator), _value(text, Operator(operator), value.strip()))


def condition_of(given: "str | Sequence[Any] | Condition") -> Condition:
    """A condition as a program gives it: text, or column, operator and value."""
    if isinstance(given, Condition):
        return given
    if isinstance(given, str):
        return parse_condition(given)
    if len(given) != 3 or given[1] not in list(Operator):
        raise InvalidError(f"cannot read the condition {given!r}: expected (column, operator, value)")
    return Condition(str(given[0]), Operator(given[1]), given[2])


def parse_order(text: str) -> tuple[Order, ...]:
    """Read columns to sort by: `-revenue,product` is the greatest revenue first, then by product."""
    names = [name.strip() for name in text.split(",")]
    if not all(name.lstrip("-") for name in names):
        raise InvalidError(f"cannot sort by {text!r}: expected columns, as in '-revenue,product'")
    return tuple(Order(name.removeprefix("-"), name.startswith("-")) for name in names)


def order_of(given: "str | Sequence[str]") -> tuple[Order, ...]:
    """An order as a program gives it: text, or several."""
    parts = [given] if isinstance(given, str) else given
    return tuple(order for part in parts for order in parse_order(part))


def parse_at_least(text: str, identity: str) -> AtLeast:
    """Read `42` or a token, a position; or `orders:0:17,orders:1:3`, records by topic, partition and offset."""
    if ":" not in text:
        return AtLeast(position=parse_position(text, identity))
    offsets = []
    for part in text.split(","):
        topic, _, rest = part.strip().partition(":")
        partition, _, offset = rest.partition(":")
        if not (topic and _is_number(partition) and _is_number(offset)):
            raise InvalidError(
                f"cannot wait for {text!r}: expected a position, or TOPIC:PARTITION:OFFSET as in 'orders:0:17'"
            )
        offsets.append((topic, int(partition), int(offset)))
    return AtLeast(offsets=tuple(offsets))


def at_least_of(given: "str | int | Mapping[str, Mapping[int, int]]", identity: str) -> AtLeast:
    """What a view must have seen, as a program gives it: `42`, a token, or `{"orders": {0: 17}}`."""
    if isinstance(given, str):
        return parse_at_least(given, identity)
    if isinstance(given, int):
        return AtLeast(position=given)
    partitions = ((topic, int(n), offset) for topic, each in given.items() for n, offset in each.items())
    return AtLeast(offsets=tuple(partitions))


def token_of(identity: str, position: int) -> str:
    """A position as text that says to which store it belongs."""
    return f"{identity}-{position}"


def parse_position(text: str, identity: str) -> int:
    """Read a position or a token; an InvalidError if it belongs to another store."""
    owner, dash, number = text.rpartition("-")
    if not _is_number(number) or (dash and not owner):
        raise InvalidError(f"cannot read {text!r} as a position: expected a number, or a token that a view gave")
    if dash and owner != identity:
        raise InvalidError(
            f"the token {text!r} belongs to another store: positions of a store that was made anew start again",
            hint="read the rows again, and go on from the token that comes with them",
        )
    return int(number)


def encode_cursor(cursor: Cursor) -> str:
    """A cursor as text that goes into an address."""
    body = [[[order.column, order.descending] for order in cursor.by], list(cursor.at)]
    return base64.urlsafe_b64encode(json.dumps(body).encode()).decode().rstrip("=")


def decode_cursor(text: str) -> Cursor:
    """The cursor again; an InvalidError if it is none."""
    try:
        by, at = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True))
        cursor = Cursor(tuple(Order(str(name), bool(down)) for name, down in by), tuple(at))
    except (ValueError, TypeError):
        raise InvalidError(f"cannot go on after {text!r}: that is no cursor that an answer gave") from None
    if len(cursor.by) != len(cursor.at) or not all(isinstance(v, str | int | float | None) for v in cursor.at):
        raise InvalidError(f"cannot go on after {text!r}: that is no cursor that an answer gave")
    return cursor


def _value(text: str, operator: Operator, value: str) -> Any:
    """What stands behind an operator: null, text in quotes, a list behind `in`, or text as it is."""
    if operator is Operator.IN:
        try:
            values = json.loads(value)
        except ValueError:
            values = None
        if not isinstance(values, list):
            raise InvalidError(f"cannot read the condition {text!r}: behind 'in' comes a list, as in [\"tea\", 2]")
        return values
    if value == "null":
        return None
    if value.startswith('"'):
        try:
            return json.loads(value)
        except ValueError:
            raise InvalidError(f"cannot read the condition {text!r}: {value} is no text in quotes") from None
    return value


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
