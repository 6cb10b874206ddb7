"""Prints of code change with what the code computes, and with nothing else."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from headwater.spark.definition.code_prints import comparable, print_of_code, prints_of_aggregate


def made(text: str, name: str = "one.py", **names: Any) -> Callable[..., Any]:
    """Return the function `f` of a program."""
    program = {"__name__": "program", **names}
    exec(compile(text, name, "exec"), program)
    function: Callable[..., Any] = program["f"]
    return function


def test_names_lines_files_and_docstrings_do_not_matter() -> None:
    one = made("def f(amount):\n    total = amount * 2\n    return total")
    other = made(
        '\n\n\ndef f(a):\n    """Double it."""\n\n    # A comment.\n    x = a * 2\n    return x', "two.py"
    )
    assert print_of_code(one) == print_of_code(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("f = lambda a: a * 2", "f = lambda a: a * 3"),
        ("f = lambda a: a.lower()", "f = lambda a: a.upper()"),
        ("f = lambda a: a + '1'", "f = lambda a: a + 1"),
        ("def f(a, b=1): return a + b", "def f(a, b=2): return a + b"),
        ("g = lambda a: a\nf = lambda a: g(a)", "g = lambda a: -a\nf = lambda a: g(a)"),
        ("R = 1\nf = lambda a: a * R", "R = 2\nf = lambda a: a * R"),
        ("R = [1]\nf = lambda a: [a * r for r in R]", "R = [2]\nf = lambda a: [a * r for r in R]"),
        ("def m(r): return lambda a: a * r\nf = m(1)", "def m(r): return lambda a: a * r\nf = m(2)"),
        (
            "from functools import partial\nf = partial(lambda r, a: a * r, 1)",
            "from functools import partial\nf = partial(lambda r, a: a * r, 2)",
        ),
        ("class C:\n  def __call__(s, a): return a\nf = C()", "class C:\n def __call__(s, a): return -a\nf = C()"),
        (
            "class C:\n  def __init__(self, r): self.r = r\n  def __call__(self, a): return a * self.r\nf = C(1)",
            "class C:\n  def __init__(self, r): self.r = r\n  def __call__(self, a): return a * self.r\nf = C(2)",
        ),
    ],
)  # fmt: skip
def test_what_a_function_computes_matters(one: str, other: str) -> None:
    assert print_of_code(made(one)) == print_of_code(made(one))
    assert print_of_code(made(one)) != print_of_code(made(other))
    assert comparable(print_of_code(made(one)), print_of_code(made(other)))


def test_a_recursive_function_has_a_print() -> None:
    assert print_of_code(made("def f(n): return 1 if n < 2 else n * f(n - 1)"))


class Total:
    column = "amount"

    def __init__(self, function: Callable[[Any], Any] | None = None) -> None:
        self.function = function

    def partial(self, row: Any) -> Any:
        value = row.value if self.function is None else row.value.map_batches(self.function)
        return {"total": (value * row.weight).sum()}

    def merge(self, of: Any) -> Any:
        return {"total": of("total").sum()}

    def result(self, of: Any) -> pl.Expr:
        expression: pl.Expr = of("total")
        return expression


def test_an_aggregate_is_described_by_its_expressions() -> None:
    found = prints_of_aggregate(Total())
    assert "total = " in found["state"]
    assert found == prints_of_aggregate(Total())
    assert "0x" not in str(prints_of_aggregate(Total(lambda v: v)))
    assert prints_of_aggregate(Total(lambda v: v * 2)) != prints_of_aggregate(Total(lambda v: v * 3))
