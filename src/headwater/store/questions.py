"""Questions about views, and how they are written, independent of any database. Pure.

A **position** is the number of changes a view has had: it is 0 before the first, grows by one with each change and
never repeats. The rows as of a position are the result of all changes up to it. A batch is committed as a whole,
so a read without `as_of` always sees the state between two batches. A rebuilt view continues the positions of the
view that it replaces.

A **token** is a position together with the identity of its store, as text (`5f3a09c2-42`): readers keep it to
continue later. A position of one store means nothing in another, and a token of another store raises an error
instead of returning wrong rows.

A condition is `COLUMN OPERATOR VALUE`; COLUMN may be a field of a struct (`window.start`) and may be in backticks:

    amount >= 10       =  !=  <  <=  >  >=
    product ^= green   text that begins with "green"
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
    """A comparison of a column with a value."""

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
    """A condition on a row; a value given as text is parsed as the column's type."""

    column: str
    operator: Operator
    value: Any


@dataclass(frozen=True, slots=True)
class Order:
    """A column to sort by; nulls come first, or last if the order is descending."""

    column: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Cursor:
    """The end of a page: its order, and the values of its last row in the order's columns."""

    by: tuple[Order, ...]
    at: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request for rows of a view. Without an `order`, rows come in key order, and in a search by relevance."""

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
            raise InvalidError("cannot search rows as of a position: the search index has the current rows only")
        if self.search is not None and self.after is not None and not self.order:
            raise InvalidError("cannot page through rows by relevance: use order_by together with a cursor")


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The state that a view must have reached before it is read: a position, and offsets of its topics."""

    position: int | None = None
    offsets: tuple[tuple[str, int, int], ...] = ()
    """Topic, partition, and the offset of the last record that the view must include."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Rows, the position at which they were read, and the cursor of the next page if there is one."""

    rows: list[dict[str, Any]]
    position: int
    token: str
    next: str | None = None


# -- parsing ----------------------------------------------------------------------------------------------------

_CONDITION = re.compile(
    r"\s*(?:`([^`]+)`|([^\s<>=!^`]+))"  # the column
    r"\s*(<=|>=|!=|\^=|=|<|>|(?<=[\s`])in(?=[\s\[]))"
    r"\s*(.*)",
    re.DOTALL,
)


def parse_condition(text: str) -> Condition:
    """Parse a condition.

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
    """Return the condition that a program gives as text, or as column, operator and value."""
    if isinstance(given, Condition):
        return given
    if isinstance(given, str):
        return parse_condition(given)
    if len(given) != 3 or given[1] not in list(Operator):
        raise InvalidError(f"cannot read the condition {given!r}: expected (column, operator, value)")
    return Condition(str(given[0]), Operator(given[1]), given[2])


def parse_order(text: str) -> tuple[Order, ...]:
    """Parse columns to sort by: `-revenue,product` is descending by revenue, then ascending by product."""
    names = [name.strip() for name in text.split(",")]
    if not all(name.lstrip("-") for name in names):
        raise InvalidError(f"cannot sort by {text!r}: expected columns, as in '-revenue,product'")
    return tuple(Order(name.removeprefix("-"), name.startswith("-")) for name in names)


def order_of(given: "str | Sequence[str]") -> tuple[Order, ...]:
    """Return the order that a program gives as one text or several."""
    parts = [given] if isinstance(given, str) else given
    return tuple(order for part in parts for order in parse_order(part))


def parse_at_least(text: str, identity: str) -> AtLeast:
    """Parse a position (`42` or a token), or records as TOPIC:PARTITION:OFFSET (`orders:0:17,orders:1:3`)."""
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
    """Return the state to wait for that a program gives as `42`, a token, or `{"orders": {0: 17}}`."""
    if isinstance(given, str):
        return parse_at_least(given, identity)
    if isinstance(given, int):
        return AtLeast(position=given)
    partitions = ((topic, int(n), offset) for topic, each in given.items() for n, offset in each.items())
    return AtLeast(offsets=tuple(partitions))


def token_of(identity: str, position: int) -> str:
    """Return a position as a token of its store."""
    return f"{identity}-{position}"


def parse_position(text: str, identity: str) -> int:
    """Parse a position or a token; raises InvalidError if it belongs to another store."""
    owner, dash, number = text.rpartition("-")
    if not _is_number(number) or (dash and not owner):
        raise InvalidError(f"cannot read {text!r} as a position: expected a number, or a token from an answer")
    if dash and owner != identity:
        raise InvalidError(
            f"the token {text!r} belongs to another store: positions start again in a newly created store",
            hint="read the rows again, and continue from the token in that answer",
        )
    return int(number)


def encode_cursor(cursor: Cursor) -> str:
    """Encode a cursor as text for a URL."""
    body = [[[order.column, order.descending] for order in cursor.by], list(cursor.at)]
    return base64.urlsafe_b64encode(json.dumps(body).encode()).decode().rstrip("=")


def decode_cursor(text: str) -> Cursor:
    """Decode a cursor; raises InvalidError if the text is not one."""
    try:
        by, at = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True))
        cursor = Cursor(tuple(Order(str(name), bool(down)) for name, down in by), tuple(at))
    except (ValueError, TypeError):
        raise InvalidError(f"cannot continue after {text!r}: expected the `next` of an answer") from None
    if len(cursor.by) != len(cursor.at) or not all(isinstance(v, str | int | float | None) for v in cursor.at):
        raise InvalidError(f"cannot continue after {text!r}: expected the `next` of an answer")
    return cursor


def _value(text: str, operator: Operator, value: str) -> Any:
    """Parse the value of a condition: null, text in quotes, a list after `in`, or plain text."""
    if operator is Operator.IN:
        try:
            values = json.loads(value)
        except ValueError:
            values = None
        if not isinstance(values, list):
            raise InvalidError(f"cannot read the condition {text!r}: expected a list after 'in': [\"tea\", 2]")
        return values
    if value == "null":
        return None
    if value.startswith('"'):
        try:
            return json.loads(value)
        except ValueError:
            raise InvalidError(f"cannot read the condition {text!r}: {value} is not a quoted text") from None
    return value


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
