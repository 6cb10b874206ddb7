"""Words: what a text is searched by, the same in every database. Pure.

A word is a run of letters and digits, without case and without accents (`Café-au-lait` is `cafe`, `au`, `lait`).
The databases only keep these and find them again; what counts as a word is decided here.

A search is words that must all be there, in any order:

    green tea        both words
    "green tea"      one behind the other
    gree*            words that begin so
    -decaf           not this word
    tea OR coffee    one or the other; binds closer than the space
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from headwater.errors import InvalidError

WORDS_MAX = 10_000
"""Of a row; PostgreSQL keeps no places beyond 16 383."""
WORD_CHARACTERS_MAX = 100
"""What is longer is no word of a language; PostgreSQL takes 2046 bytes."""
TERMS_MAX = 50

_WORD = re.compile(r"[^\W_]+")
_TERM = re.compile(r'\s*(-?)(?:"([^"]*)"|([^\s"]+))')


def words_of(texts: Iterable[str | None]) -> list[str]:
    """The words of a row's texts, in order.

    >>> words_of(["Café-au-lait", None, "2 Tassen"])
    ['cafe', 'au', 'lait', '2', 'tassen']
    """
    found: list[str] = []
    for text in texts:
        found += [word[:WORD_CHARACTERS_MAX] for word in _WORD.findall(_folded(text or ""))]
        if len(found) >= WORDS_MAX:
            return found[:WORDS_MAX]
    return found


@dataclass(frozen=True, slots=True)
class Term:
    """Words that stand one behind the other; of the last one, only the beginning if it is a `prefix`."""

    words: tuple[str, ...]
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class TextSearch:
    """All of the groups must be found, and of each group one term; none of the terms that are left out."""

    groups: tuple[tuple[Term, ...], ...]
    without: tuple[Term, ...] = ()

    @property
    def fts5(self) -> str:
        """In the language of SQLite's FTS5; words have no quotes in them."""
        wanted = " AND ".join(f"({' OR '.join(_fts5(term) for term in group)})" for group in self.groups)
        unwanted = " OR ".join(_fts5(term) for term in self.without)
        return f"({wanted}) NOT ({unwanted})" if self.without else wanted

    @property
    def tsquery(self) -> str:
        """In the language of PostgreSQL's tsquery."""
        wanted = " & ".join(f"({' | '.join(_tsquery(term) for term in group)})" for group in self.groups)
        return wanted + "".join(f" & !({_tsquery(term)})" for term in self.without)


def parse_search(text: str) -> TextSearch:
    """Read what a person typed; an InvalidError where there is nothing to look for."""
    groups: list[tuple[Term, ...]] = []
    without: list[Term] = []
    joined = False
    terms = list(_TERM.finditer(text))
    if len(terms) > TERMS_MAX:
        raise InvalidError(f"cannot search for {len(terms)} terms at once: {TERMS_MAX} are the most")
    for found in terms:
        minus, quoted, plain = found.groups()
        if plain == "OR" and not minus:
            joined = bool(groups)
            continue
        words = tuple(words_of([quoted if quoted is not None else plain]))
        if not words:
            continue
        term = Term(words, prefix=quoted is None and plain.endswith("*"))
        if minus:
            without.append(term)
        elif joined:
            groups[-1] = (*groups[-1], term)
        else:
            groups.append((term,))
        joined = False
    if not groups:
        raise InvalidError(f"cannot search for {text!r}: there is no word in it to look for")
    return TextSearch(tuple(groups), tuple(without))


def _folded(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    return unicodedata.normalize("NFKC", "".join(c for c in decomposed if not unicodedata.combining(c)))


def _fts5(term: Term) -> str:
    return f'"{" ".join(term.words)}"{" *" if term.prefix else ""}'


def _tsquery(term: Term) -> str:
    words = [f"'{word}'" for word in term.words]
    if term.prefix:
        words[-1] += ":*"
    return f"({' <-> '.join(words)})"
