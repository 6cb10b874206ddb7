"""One vocabulary: every term of the glossary is used, and no word that it replaces comes back."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
ROW = re.compile(r"^\| (?P<term>[^|]+) \| (?P<meaning>[^|]+) \| (?P<elsewhere>[^|]*)\| ?(?P<avoid>[^|]*)\|$")
EXEMPT = {"docs/glossary.md", "tests/docs/test_glossary.py"}
ON_DISK = re.compile(r'["`]_told(_was)?["`]')
"""Names of columns in the state of operators: a new name would end every checkpoint that has them."""


@cache
def rows() -> list[dict[str, str]]:
    found = [ROW.match(line) for line in GLOSSARY.read_text().splitlines()]
    cells = [{name: text.strip() for name, text in match.groupdict().items()} for match in found if match]
    return [row for row in cells if row["term"] != "term"]


@cache
def words_of(text: str) -> str:
    """Return text in lower case, with identifiers split: `DeadLetter` and `dead_letter` become "dead letter"."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return re.sub(r"[^a-z0-9]+", " ", apart.lower())


@cache
def files(*patterns: str) -> dict[str, str]:
    listed = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [name for name in listed.stdout.splitlines() if name not in EXEMPT and (ROOT / name).is_file()]
    return {name: words_of(ON_DISK.sub("", (ROOT / name).read_text())) for name in paths}


def avoided_words() -> list[str]:
    section = GLOSSARY.read_text().partition("## Words that we avoid")[2]
    listed = section.rpartition(":")[2].strip().rstrip(".")
    return [*(word.strip() for word in listed.split(",")), *(row["avoid"] for row in rows() if row["avoid"])]


def test_the_glossary_has_one_sentence_for_each_term() -> None:
    terms = [row["term"] for row in rows()]
    assert len(terms) > 50
    assert len(terms) == len(set(terms))
    assert [row["term"] for row in rows() if not row["meaning"].endswith(".")] == []


def test_every_term_is_used_in_the_code() -> None:
    code = " ".join(files("src/*.py", "src/*.js").values()) + " ".join(
        files("torture/*.py", "tests/*.py").values()
    )
    assert [row["term"] for row in rows() if words_of(row["term"]) not in code] == []


@pytest.mark.parametrize("word", avoided_words())
def test_a_replaced_word_does_not_come_back(word: str) -> None:
    everywhere = files("*.py", "*.md", "*.js", "*.html", "dev")
    assert [name for name, text in everywhere.items() if re.search(rf"\b{word}\b", text)] == []
