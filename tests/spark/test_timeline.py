"""The example app of home timelines: its view equals a computation in plain Python."""

import json
import random
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.cli.app_file import load_app
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker
from tests.spark.run_pipeline import run_once

FOLDER = Path(__file__).parents[2] / "examples" / "timeline"
STAR = 3
PEOPLE = ["ann", "bob", "cleo", "dan", "eve", "fay"]

Events = list[dict[str, Any]]


def some_posts(chance: random.Random, count: int) -> Events:
    """Make posts and deletions; some deletions arrive before their post."""
    events: Events = []
    for number in range(count):
        row = {
            "post": f"p{number:03d}",
            "author": chance.choice(PEOPLE),
            "text": f"text {number}",
            "posted_at": f"2026-11-15T12:{number // 60:02d}:{number % 60:02d}Z",
            "version": 0,
        }
        events.append(row)
        if chance.random() < 0.3:
            events.insert(chance.randrange(len(events) + 1), {**row, "text": None, "version": 1})
    return events


def some_follows(chance: random.Random, count: int) -> Events:
    """Make follows and unfollows; in the end all users follow the first one."""
    pairs = [(chance.choice(PEOPLE), chance.choice(PEOPLE)) for _ in range(count)]
    pairs += [(reader, PEOPLE[0]) for reader in PEOPLE[1:]]
    last = len(pairs) - len(PEOPLE)
    events = [
        {
            "follower": follower,
            "author": author,
            "follows": version > last or chance.random() < 0.7,
            "version": version,
        }
        for version, (follower, author) in enumerate(pairs)
    ]
    chance.shuffle(events)
    return events


def newest(events: Events, *key: str) -> Events:
    """Return the newest version of each key."""
    found: dict[Any, dict[str, Any]] = {}
    for event in sorted(events, key=lambda event: event["version"]):
        found[tuple(event[name] for name in key)] = event
    return list(found.values())


def expected(posts: Events, follows: Events, reader: str) -> list[tuple[str, str, str]]:
    authors = {
        f["author"] for f in newest(follows, "follower", "author") if f["follows"] and f["follower"] == reader
    }
    there = [post for post in newest(posts, "post") if post["text"] is not None and post["author"] in authors]
    rows = [(post["post"], post["author"], post["text"]) for post in there]
    return sorted(rows, reverse=True)


def stars(follows: Events) -> set[str]:
    there = [f["author"] for f in newest(follows, "follower", "author") if f["follows"]]
    return {author for author in there if there.count(author) > STAR}


def test_timelines_equal_those_of_plain_python(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAR", str(STAR))
    monkeypatch.syspath_prepend(str(FOLDER))
    home = import_module("home").home
    chance = random.Random(6)
    posts, follows = some_posts(chance, 40), some_follows(chance, 24)
    for topic, events in (("posts", posts), ("follows", follows)):
        produce(broker.bootstrap_servers, topic, [json.dumps(event).encode() for event in events])
    with closing(ViewStore(tmp_path / "views.db")) as store:
        run_once(load_app(FOLDER / "app.py"), spark, broker.bootstrap_servers, tmp_path, store)
    assert stars(follows), "there is a star"
    with hw.Views(tmp_path) as views:
        for reader in PEOPLE:
            found = [(row["post"], row["author"], row["text"]) for row in home(views, reader, limit=100)]
            assert found == expected(posts, follows, reader), reader
        copied = {row["author"] for row in views["timeline"].rows().rows}
        assert copied and not copied & stars(follows), "a star's posts are not copied"
