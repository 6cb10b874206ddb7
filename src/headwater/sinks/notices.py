"""Batches as notices to people and programs outside: what changed, and an id by which a repetition is known. Pure.

A notice is sent at least once. After a crash the batch comes again, its rows perhaps in another order; so changes
are put in an order of their own first, and the same notice gets the same id. That of a single row is made of what
it says: when the batch comes again without a row that was refused, the others are the same notices still.
"""

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater.change import Op
from headwater.errors import InvalidError, RefusedError
from headwater.json_values import json_text
from headwater.sink import REFUSALS_MAX, Batch, Stream
from headwater.sinks.json_rows import json_objects

CHANGES_MAX = 500
"""Of a notice: a larger batch becomes several."""

BATCH, ROW = "batch", "row"
_NAMESPACE = uuid.UUID("6f1c6a0e-3f0f-5d6e-9a44-3d9d5c1f6d2b")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeNotice:
    """What happened to a row, the batch's `at` that place; `before` is known where the query takes rows back."""

    op: Op
    before: Row | None
    after: Row | None
    at: int = field(compare=False)

    def as_json(self) -> Row:
        return {"op": self.op.value, "before": self.before, "after": self.after}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Some changes of one batch, and where they come from; `id` is the same when the notice is sent again.

    `name` tells it from the others of the batch.
    """

    query: str
    run: str
    batch: int
    part: int
    parts: int
    name: str
    changes: tuple[ChangeNotice, ...]

    @property
    def id(self) -> str:
        return str(uuid.uuid5(_NAMESPACE, f"{self.query}/{self.run}/{self.batch}/{self.name}"))

    def as_json(self) -> Row:
        return {
            "id": self.id,
            "query": self.query,
            "run": self.run,
            "batch": self.batch,
            "part": self.part,
            "parts": self.parts,
            "changes": [change.as_json() for change in self.changes],
        }


def notices(stream: Stream, batch: Batch, *, each: str) -> list[Notice]:
    """The notices of a batch: one for each row, or as few as there can be."""
    changes = [change for _, change in sorted(_described(stream, batch), key=lambda found: found[0])]
    size = 1 if each == ROW else CHANGES_MAX
    parts = [tuple(changes[at : at + size]) for at in range(0, len(changes), size)]
    names = _names_of(changes) if each == ROW else [str(n) for n in range(len(parts))]
    return [
        Notice(
            query=stream.query,
            run=batch.run,
            batch=batch.number,
            part=n,
            parts=len(parts),
            name=name,
            changes=part,
        )
        for n, (name, part) in enumerate(zip(names, parts, strict=True))
    ]


def send_all(found: Sequence[Notice], send: Callable[[Notice], None]) -> None:
    """Send notices. What is refused of single rows is told at the end, when all others are sent."""
    refused: list[int] = []
    first: RefusedError | None = None
    for notice in found:
        try:
            send(notice)
        except RefusedError as error:
            if len(notice.changes) > 1:
                hint = "with each='row' it is known which row is refused, and goes to the dead letters"
                raise InvalidError(str(error), hint=hint) from error
            first = first or error
            refused += [change.at for change in notice.changes]
            if len(refused) > REFUSALS_MAX:
                break
    if first is not None:
        raise RefusedError(str(first), rows=refused) from first


def check_each(each: str) -> None:
    if each not in (BATCH, ROW):
        raise InvalidError(f"cannot send notices for each {each!r}: 'batch' or 'row'")


def _described(stream: Stream, batch: Batch) -> Iterator[tuple[bytes, ChangeNotice]]:
    """What happened, with what it is sorted by: the key, or without one the row."""
    texts = json_objects(batch.rows).to_pylist()
    signs = [1] * len(texts) if batch.signs is None else batch.signs.to_pylist()
    if not stream.key:
        for at, (text, sign) in enumerate(zip(texts, signs, strict=True)):
            row = json.loads(text)
            before, after = (None, row) if sign > 0 else (row, None)
            yield text, ChangeNotice(op=Op.INSERT if sign > 0 else Op.DELETE, before=before, after=after, at=at)
        return
    keys = json_objects(batch.rows.select(list(stream.key))).to_pylist()
    first: dict[bytes, int] = {}
    last: dict[bytes, int] = {}
    for at, key in enumerate(keys):
        first.setdefault(key, at)
        last[key] = at
    for key, end in last.items():
        start = first[key]
        before = json.loads(texts[start]) if signs[start] < 0 else None
        after = json.loads(texts[end]) if signs[end] > 0 else None
        if before is None and after is None:
            continue  # It came and went within the batch.
        op = Op.DELETE if after is None else Op.INSERT if before is None else Op.UPDATE
        yield key, ChangeNotice(op=op, before=before, after=after, at=end)


def _names_of(changes: Sequence[ChangeNotice]) -> Iterator[str]:
    """What each change says, and which it is of those that say the same."""
    seen: Counter[str] = Counter()
    for change in changes:
        text = json_text(change.as_json())
        seen[text] += 1
        yield f"{text}/{seen[text]}"
