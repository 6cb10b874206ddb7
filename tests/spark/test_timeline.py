"""The app of home timelines: after each run, what is read is what plain Python makes of all events."""

import json
import random
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.cli.loading import load_app
from headwater.clock import SystemClock
from headwater.spark.pipeline import Pipeline, PipelineSettings
from headwater.store.facts import FactStore
from headwater.store.views import ViewStore
from headwater.transmit.embedded import Broker

FOLDER = Path(__file__).parents[2] / "examples" / "timeline"
STAR = 3
PEOPLE = ["ann", "bob", "cleo", "dan", "eve", "fay"]

Events = list[dict[str, Any]]


def some_posts(chance: random.Random, first: int, count: int) -> Events:
    """New posts, and deletions of earlier ones, some of which overtake the post."""
    events: Events = []
    for number in range(first, first + count):
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


def some_follows(chance: random.Random, first: int, count: int) -> Events:
    """Follows and unfollows; everybody follows the first, who becomes a star."""
    pairs = [(reader, PEOPLE[0]) for reader in PEOPLE[1:]] if first == 0 else []
    pairs += [(chance.choice(PEOPLE), chance.choice(PEOPLE)) for _ in range(count)]
    events = [
        {"follower": follower, "author": author, "follows": chance.random() < 0.7, "version": first + number}
        for number, (follower, author) in enumerate(pairs)
    ]
    chance.shuffle(events)
    return events


def newest(events: Events, *key: str) -> Events:
    """The newest version of each key."""
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


def test_timelines_are_what_plain_python_says(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAR", str(STAR))
    monkeypatch.syspath_prepend(str(FOLDER))
    home = import_module("home").home
    chance = random.Random(6)
    posts: Events = []
    follows: Events = []
    store, facts = ViewStore(tmp_path / "views.db"), FactStore(tmp_path / "facts.db")
    seen_stars: list[set[str]] = []
    for part in range(2):
        more_posts, more_follows = some_posts(chance, part * 20, 20), some_follows(chance, part * 40, 12)
        for topic, events in (("posts", more_posts), ("follows", more_follows)):
            produce(broker.bootstrap_servers, topic, [json.dumps(event).encode() for event in events])
        posts, follows = posts + more_posts, follows + more_follows
        settings = PipelineSettings(bootstrap_servers=broker.bootstrap_servers, data=tmp_path, once=True)
        pipeline = Pipeline(load_app(FOLDER / "app.py"), spark, store, facts, settings, SystemClock())
        try:
            pipeline.start()
            pipeline.run()
        finally:
            pipeline.stop()
        seen_stars.append(stars(follows))
        with hw.Views(tmp_path) as views:
            for reader in PEOPLE:
                found = [(row["post"], row["author"], row["text"]) for row in home(views, reader, limit=100)]
                assert found == expected(posts, follows, reader), reader
            copied = {row["author"] for row in views["timeline"].rows().rows}
            assert not copied & stars(follows), "a star's posts are not copied"
    assert any(seen_stars), "there was a star"
    store.close()
