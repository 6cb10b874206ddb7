"""ARCHITECTURE.md names files that exist: for each extension where to begin, and the walks through the code."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "headwater"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
FOLDERS = (
    PACKAGE,
    ROOT,
    PACKAGE / "transmit",
    PACKAGE / "process" / "windows",
    PACKAGE / "process" / "aggregates",
)
PLANNED = {"capture/"}  # a later stage


def exists(name: str, *folders: Path) -> bool:
    return any((folder / f"{name}{suffix}").exists() for folder in folders for suffix in ("", ".py"))


def test_every_file_that_it_names_exists() -> None:
    names = set(re.findall(r"`([a-z_/]+(?:\.(?:py|js)|/))`", TEXT)) - PLANNED
    assert len(names) > 20
    assert sorted(name for name in names if not exists(name, *FOLDERS)) == []


@pytest.mark.parametrize(
    ("title", "count", "walk"), re.findall(r"\*\*(.+?)\*\* \((\d+) files\)\n\n```\n(.*?)```", TEXT, re.S)
)
def test_a_walk_goes_through_existing_files(title: str, count: str, walk: str) -> None:
    stage, steps = "", []
    for line in walk.splitlines():
        stage = line[:10].strip() or stage
        parts = re.sub(r"\([^)]*\)", "", line[10:]).split("->")
        steps += [(stage, part.strip()) for part in parts if part.strip() and " " not in part.strip()]
    missing = [step for stage, step in steps if not exists(step, PACKAGE / stage, PACKAGE)]
    assert missing == []
    assert len(steps) == int(count)


def test_there_are_three_walks() -> None:
    assert len(re.findall(r"\(\d+ files\)", TEXT)) == 3


ADDITIONS = (
    "trigger", "kind of window", "aggregate", "source", "sink", "SASL mechanism", "pattern operator",
    "console page", "CLI command", "benchmark",
)  # fmt: skip


@pytest.mark.parametrize("addition", ADDITIONS)
def test_it_says_where_to_begin(addition: str) -> None:
    (row,) = [
        line for line in TEXT.splitlines() if line.startswith("| a") and f"{addition} " in line.split("|")[1] + " "
    ]
    assert re.search(r"`[a-z_/]+(\.py|\.js|/)`", row.split("|")[2])
