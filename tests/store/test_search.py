"""Splitting texts into words, and parsing searches."""

import pytest

from headwater.errors import InvalidError
from headwater.store.search import Term, parse_search, split_words


def test_words_have_no_case_and_no_accents() -> None:
    assert split_words(["Crème brûlée", None, "STRAẞE_2"]) == ["creme", "brulee", "strasse", "2"]
    assert split_words(["ﬁne İstanbul x²"]) == ["fine", "istanbul", "x2"]
    assert split_words(["日本 語"]) == ["日本", "語"]


def test_the_words_of_a_row_are_limited() -> None:
    assert len(split_words(["a " * 20_000, "b"])) == 10_000
    assert split_words(["x" * 500]) == ["x" * 100]


def test_a_search_as_fts5_and_as_tsquery() -> None:
    search = parse_search('green "loose tea" cof* OR cocoa -decaf')
    assert search.groups == (
        (Term(("green",)),),
        (Term(("loose", "tea")),),
        (Term(("cof",), prefix=True), Term(("cocoa",))),
    )
    assert search.fts5 == '(("green") AND ("loose tea") AND ("cof" * OR "cocoa")) NOT ("decaf")'
    assert search.tsquery == "(('green')) & (('loose' <-> 'tea')) & (('cof':*) | ('cocoa')) & !(('decaf'))"


def test_an_or_without_two_sides_is_ignored() -> None:
    assert parse_search("OR tea OR").groups == ((Term(("tea",)),),)
    with pytest.raises(InvalidError, match="no word"):
        parse_search("... -x")
