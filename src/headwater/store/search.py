"""Text search: how texts are split into words and searches are parsed, the same in every database. Pure.

A word is a run of letters and digits, without case and without accents (`Café-au-lait` is `cafe`, `au`, `lait`).
The databases only index these words; this module decides what a word is.

A search matches rows that have all its terms, in any order:

    green tea        both words
    "green tea"      the exact phrase
    gree*            words with this prefix
    -decaf           rows without this word
    tea OR coffee    either word; binds closer than the space
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from headwater.errors import InvalidError

WORDS_MAX = 10_000
"""Words of a row to index; PostgreSQL stores no word positions beyond 16,383."""
WORD_CHARACTERS_MAX = 100
"""Longer words are cut: no language has any, and PostgreSQL's limit is 2,046 bytes."""
TERMS_MAX = 50

_WORD = re.compile(r"[^\W_]+")
_TERM = re.compile(r'\s*(-?)(?:"([^"]*)"|([^\s"]+))')


def split_words(texts: Iterable[str | None]) -> list[str]:
    """Return the words of a row's texts, in order.

    >>> split_words(["Café-au-lait", None, "2 Tassen"])
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
    """One word, or the consecutive words of a phrase; with `prefix`, the last one matches by its beginning."""

    words: tuple[str, ...]
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class TextSearch:
    """Matches rows that have at least one term of every group, and none of the terms in `without`."""

    groups: tuple[tuple[Term, ...], ...]
    without: tuple[Term, ...] = ()

    @property
    def fts5(self) -> str:
        """The search as a query of SQLite's FTS5; words contain no quotes."""
        wanted = " AND ".join(f"({' OR '.join(_fts5(term) for term in group)})" for group in self.groups)
        unwanted = " OR ".join(_fts5(term) for term in self.without)
        return f"({wanted}) NOT ({unwanted})" if self.without else wanted

    @property
    def tsquery(self) -> str:
        """The search as a tsquery of PostgreSQL."""
        wanted = " & ".join(f"({' | '.join(_tsquery(term) for term in group)})" for group in self.groups)
        return wanted + "".join(f" & !({_tsquery(term)})" for term in self.without)


def parse_search(text: str) -> TextSearch:
    """Parse a search; raises InvalidError if it has no word to look for."""
    groups: list[tuple[Term, ...]] = []
    without: list[Term] = []
    joined = False
    terms = list(_TERM.finditer(text))
    if len(terms) > TERMS_MAX:
        raise InvalidError(f"cannot search for {len(terms)} terms at once: the limit is {TERMS_MAX}")
    for found in terms:
        minus, quoted, plain = found.groups()
        if plain == "OR" and not minus:
            joined = bool(groups)
            continue
        words = tuple(split_words([quoted if quoted is not None else plain]))
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
        raise InvalidError(f"cannot search for {text!r}: it has no word to look for")
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
