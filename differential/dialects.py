"""The few functions that DuckDB and Spark SQL write differently."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """The syntax of an engine for structs, arrays and the values of a group with their times."""

    name: str

    def struct(self, **fields: str) -> str:
        if self.name == "spark":
            return "named_struct(" + ", ".join(f"'{name}', {value}" for name, value in fields.items()) + ")"
        return "struct_pack(" + ", ".join(f"{name} := {value}" for name, value in fields.items()) + ")"

    def array(self, value: str) -> str:
        return f"array({value})" if self.name == "spark" else f"[{value}]"

    def values(self, column: str, time: str) -> str:
        """Return an aggregate that collects the values of a group, with their times."""
        pair = self.struct(v=column, t=time)
        return f"collect_list({pair})" if self.name == "spark" else f"list({pair})"


DUCKDB, SPARK = Dialect("duckdb"), Dialect("spark")
