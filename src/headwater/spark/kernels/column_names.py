"""Column names of users: refer to a column by its exact name, and refuse names that operators cannot use.

Kernels add columns of their own to a user's rows. A user's column of the same name would be overwritten, so it is
refused before anything runs.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.errors import InvalidError
from headwater.spark.kernels.watermark_sources import METADATA_COLUMNS

_STATE_NAMES = ("_told", "_told_was")

RESERVED = re.compile(
    r"_(all|at|by|change_other|closed|deleted|end|expired|final|fires|gone|gone_from|hash|i|known|last|left|mark"
    r"|met|met_was|more|n|net|new|nonspeculative|number|order|other|panes|reason|right|row|row_other|row_time|rows"
    r"|seen|session|side|start|there|time|time_other|timing|turn|was|window)"
    r"|_(before|exists|inside|is_old|kind|narrow|restarts|same|touched|whole)"
    r"|_a\d+_.*|_key\d+|_o\d+|_position\d*|_trigger\d*|" + "|".join(_STATE_NAMES)
)
"""Names of the columns that kernels add to rows."""


def quoted(name: str) -> str:
    """Return a name as Spark's SQL reads it: in backticks, so that a dot does not separate a struct's field."""
    return "`" + name.replace("`", "``") + "`"


def column(name: str) -> Column:
    """Return the column with exactly this name."""
    return F.col(quoted(name))


def with_metadata(rows: DataFrame, name: str, metadata: Mapping[str, Any]) -> DataFrame:
    """Replace the metadata of a column; Spark's `withMetadata` reads a dot in a name as a struct's field."""
    return rows.withColumn(name, column(name).alias(name, metadata=dict(metadata)))


def check_names(names: Iterable[str]) -> None:
    """Raise InvalidError if an operator cannot use rows with these columns."""
    seen: dict[str, str] = {}
    for name in names:
        lower = name.lower()
        if RESERVED.fullmatch(lower):
            raise InvalidError(f"the rows have a column {name!r}, a name that operators use themselves; rename it")
        if lower in METADATA_COLUMNS and name != lower:
            raise InvalidError(f"the rows have a column {name!r}, which Spark takes for {lower!r}; rename it")
        if name == "*" or (name.startswith("^") and name.endswith("$")):
            raise InvalidError(f"the rows have a column {name!r}, which operators read as a pattern; rename it")
        if lower in seen:
            raise InvalidError(
                f"the rows have the columns {seen[lower]!r} and {name!r}, which are the same for Spark; rename one"
            )
        seen[lower] = name
