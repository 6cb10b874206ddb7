"""Generate the events of Nexmark's auction house: persons register, open auctions and bid.

Of every 50 events one is a person, three are auctions and 46 are bids, with 10,000 events per second of event
time. Half of all bids are for a hot auction, and three quarters of bidders and sellers are hot ones. The kind and
id of an event, and which ids are hot, follow from its number, the rest from the seed, so any range of events can
be generated on its own and is always the same. Events are generated column by column.

    python events.py FOLDER [EVENTS]     writes persons, auctions and bids as CSV without a header, one file per
                                         100,000 events, and the side input of q13 as CSV with a header
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

PERSONS, AUCTIONS, BIDS = 1, 3, 46
TURN = PERSONS + AUCTIONS + BIDS
EVENTS_PER_SECOND = 10_000
BEGINNING_MS = 1_767_225_600_000  # 2026-01-01, UTC
FIRST_ID, FIRST_CATEGORY, CATEGORIES = 1000, 10, 5
ACTIVE_PERSONS, OPEN_AUCTIONS, LEAD = 1000, 100, 10
HOT_OF = 100  # the first of so many consecutive ids is hot
CHANNELS = 10_000
FIRST_NAMES = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
CITIES = ["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent",
          "Cheyenne"]  # fmt: skip
STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
FILE_EVENTS = 100_000

SCHEMAS = {
    "persons": "id long, name string, email string, credit_card string, city string, state string, "
    "date_time timestamp, extra string",
    "auctions": "id long, item_name string, description string, initial_bid long, reserve long, "
    "date_time timestamp, expires timestamp, seller long, category long, extra string",
    "bids": "auction long, bidder long, price long, channel string, url string, date_time timestamp, extra string",
}

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Events:
    """A range of events, each kind in order of time."""

    persons: pl.DataFrame
    auctions: pl.DataFrame
    bids: pl.DataFrame


def make_events(count: int, *, first: int = 0, seed: int = 0, per_second: int = EVENTS_PER_SECOND) -> Events:
    """Generate `count` events from number `first` on, `per_second` of them in a second of event time."""
    random = np.random.default_rng((seed, first))
    numbers = np.arange(first, first + count, dtype=np.int64)
    turn = numbers % TURN
    return Events(
        _persons(numbers[turn < PERSONS], per_second, random),
        _auctions(numbers[(turn >= PERSONS) & (turn < PERSONS + AUCTIONS)], per_second, random),
        _bids(numbers[turn >= PERSONS + AUCTIONS], per_second, random),
    )


def side_input() -> pl.DataFrame:
    """Return the table that q13 joins with bids."""
    keys = np.arange(10_000)
    return pl.DataFrame({"key": keys, "value": [f"value {key}" for key in keys]})


def stretches(count: int, *, seed: int = 0) -> Iterator[Events]:
    """Generate events in chunks of at most `FILE_EVENTS`."""
    for first in range(0, count, FILE_EVENTS):
        yield make_events(min(FILE_EVENTS, count - first), first=first, seed=seed)


def write_events(folder: Path, count: int, *, seed: int = 0) -> None:
    """Write events as CSV files into `folder`, with a subfolder for each kind, and the side input."""
    for number, events in enumerate(stretches(count, seed=seed)):
        for kind in SCHEMAS:
            path = folder / kind / f"{number:05}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            getattr(events, kind).write_csv(path, include_header=False, datetime_format="%Y-%m-%d %H:%M:%S%.3f")
    side_input().write_csv(folder / "side_input.csv")


# -- ids and times of events ----------------------------------------------------------------------------------


def _time_ms(numbers: Numbers, per_second: int) -> Numbers:
    return BEGINNING_MS + numbers * 1000 // per_second


def _last_person(numbers: Numbers) -> Numbers:
    """Return the number of the last person registered at an event."""
    return numbers // TURN * PERSONS + np.minimum(numbers % TURN, PERSONS - 1)


def _last_auction(numbers: Numbers) -> Numbers:
    """Return the number of the last auction opened at an event; -1 before the first."""
    place = np.minimum(numbers % TURN - PERSONS, AUCTIONS - 1)
    return numbers // TURN * AUCTIONS + np.maximum(place, -1)


def _some_person(numbers: Numbers, random: np.random.Generator) -> Numbers:
    """Choose a person who was active recently, or who will register soon."""
    persons = _last_person(numbers) + 1
    active = np.minimum(persons, ACTIVE_PERSONS)
    return persons - active + random.integers(0, active + LEAD)


def _some_auction(numbers: Numbers, random: np.random.Generator) -> Numbers:
    last = _last_auction(numbers)
    least = np.maximum(last - OPEN_AUCTIONS, 0)
    return least + random.integers(0, last - least + 1 + LEAD)


def _hot(last: Numbers) -> Numbers:
    return np.maximum(last, 0) // HOT_OF * HOT_OF


# -- contents of events ---------------------------------------------------------------------------------------


def _persons(numbers: Numbers, per_second: int, random: np.random.Generator) -> pl.DataFrame:
    count = len(numbers)
    first, last, city, state = (
        _choice(words, count, random) for words in (FIRST_NAMES, LAST_NAMES, CITIES, STATES)
    )
    digits = [pl.Series(random.integers(0, 10_000, count)).cast(pl.String).str.zfill(4) for _ in range(4)]
    return pl.DataFrame(
        {
            "id": FIRST_ID + _last_person(numbers),
            "name": first + " " + last,
            "email": _text(count, 3, 7, random) + "@" + _text(count, 3, 5, random) + ".com",
            "credit_card": digits[0] + " " + digits[1] + " " + digits[2] + " " + digits[3],
            "city": city,
            "state": state,
            "date_time": _moments(_time_ms(numbers, per_second)),
            "extra": _text(count, 100, 150, random),
        }
    )


def _auctions(numbers: Numbers, per_second: int, random: np.random.Generator) -> pl.DataFrame:
    count = len(numbers)
    time = _time_ms(numbers, per_second)
    # With this mean length about OPEN_AUCTIONS are open at a time.
    length_ms = OPEN_AUCTIONS * TURN // AUCTIONS * 1000 // per_second
    price = _prices(count, random)
    is_hot = random.integers(0, 4, count) > 0
    seller = np.where(is_hot, _hot(_last_person(numbers)), _some_person(numbers, random))
    return pl.DataFrame(
        {
            "id": FIRST_ID + _last_auction(numbers),
            "item_name": _text(count, 3, 20, random),
            "description": _text(count, 3, 100, random),
            "initial_bid": price,
            "reserve": price + _prices(count, random),
            "date_time": _moments(time),
            "expires": _moments(time + 1 + random.integers(0, 2 * length_ms, count)),
            "seller": FIRST_ID + seller,
            "category": FIRST_CATEGORY + random.integers(0, CATEGORIES, count),
            "extra": _text(count, 300, 400, random),
        }
    )


def _bids(numbers: Numbers, per_second: int, random: np.random.Generator) -> pl.DataFrame:
    count = len(numbers)
    auction = np.where(
        random.integers(0, 2, count) > 0, _hot(_last_auction(numbers)), _some_auction(numbers, random)
    )
    bidder = np.where(
        random.integers(0, 4, count) > 0, _hot(_last_person(numbers)) + 1, _some_person(numbers, random)
    )
    # Half of all bids use one of four channels, the others one of CHANNELS.
    channel = np.where(
        random.integers(0, 2, count) > 0, random.integers(0, 4, count), 4 + random.integers(0, CHANNELS, count)
    )
    channels = _channels()
    return pl.DataFrame(
        {
            "auction": FIRST_ID + auction,
            "bidder": FIRST_ID + bidder,
            "price": _prices(count, random),
            "channel": channels["channel"].gather(channel),
            "url": channels["url"].gather(channel),
            "date_time": _moments(_time_ms(numbers, per_second)),
            "extra": _text(count, 50, 80, random),
        }
    )


def _channels() -> pl.DataFrame:
    """Return channels and URLs, the same for every seed; 9 of 10 small channels have an id in the URL."""
    random = np.random.default_rng(22)
    count = 4 + CHANNELS
    names = ["Google", "Facebook", "Baidu", "Apple", *(f"channel-{number}" for number in range(CHANNELS))]
    folders = [_text(count, 3, 5, random) for _ in range(3)]
    has_id = random.integers(0, 10, count) > 0
    has_id[:4] = False
    ids = pl.Series([f"&channel_id={number * 7919 % 1_000_003}" for number in range(count)])
    tail = pl.select(pl.when(pl.Series(has_id)).then(ids).otherwise(pl.lit(""))).to_series()
    url = (
        "https://www.nexmark.com/" + folders[0] + "/" + folders[1] + "/" + folders[2] + "/item.htm?query=1" + tail
    )
    return pl.DataFrame({"channel": names, "url": url})


def _prices(count: int, random: np.random.Generator) -> Numbers:
    """Return prices from a dollar to a million, in cents, log-uniformly distributed."""
    return np.round(10.0 ** (random.random(count) * 6) * 100).astype(np.int64)


def _moments(time_ms: Numbers) -> pl.Series:
    return pl.Series(time_ms).cast(pl.Datetime("ms")).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")


def _choice(words: list[str], count: int, random: np.random.Generator) -> pl.Series:
    return pl.Series(words).gather(random.integers(0, len(words), count))


_LETTERS = 1 << 16


def _text(count: int, least: int, most: int, random: np.random.Generator) -> pl.Series:
    """Return random texts, as slices of one long text, because slicing is as fast as copying."""
    letters = np.random.default_rng(least * 1000 + most).integers(97, 123, _LETTERS, dtype=np.uint8)
    long = pl.Series([letters.tobytes().decode()]).new_from_index(0, count)
    starts = pl.Series(random.integers(0, _LETTERS - most, count))
    return long.str.slice(starts, pl.Series(random.integers(least, most, count)))


if __name__ == "__main__":
    write_events(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000)
