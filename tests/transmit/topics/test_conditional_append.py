"""Conditions of records, and appends that fail because of them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import InvalidError, UnavailableError
from headwater.record import LATEST, Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.topics.conditional_append import (
    EXPECTED_OFFSET,
    EXPECTED_VERSION,
    NO_VERSION,
    ExpectationFailed,
    KeyVersions,
    check_expectations,
)

ACCOUNTS = TopicPartition("accounts", 0)


def expecting(name: str, value: bytes | None, key: bytes | None = b"a") -> list[Record]:
    return [Record(key=key, value=b"", headers=(("other", None), (name, value)))]


@given(st.lists(st.sampled_from([b"a", b"b", b"", None]), max_size=30))
def test_version_is_the_offset_of_the_last_record_of_a_key(keys: list[bytes | None]) -> None:
    versions = KeyVersions(Path(":memory:"))
    last: dict[bytes, int] = {}
    for offset, key in enumerate(keys):
        versions.add([Record(key=key, offset=offset)], offset + 1)
        if key is not None:
            last[key] = offset
    assert all(versions.version(key) == last.get(key, NO_VERSION) for key in (b"a", b"b", b"", b"c"))
    assert versions.reached == len(keys)
    versions.clear()
    assert (versions.version(b"a"), versions.reached) == (NO_VERSION, 0)
    versions.close()


def test_expected_offset_must_be_the_end() -> None:
    versions = KeyVersions(Path(":memory:"))
    check_expectations(expecting(EXPECTED_OFFSET, b"7"), versions, 7)
    with pytest.raises(ExpectationFailed, match="the end of the partition is 8, expected 7"):
        check_expectations(expecting(EXPECTED_OFFSET, b"7"), versions, 8)
    versions.close()


def test_expected_version_must_be_the_keys_version() -> None:
    versions = KeyVersions(Path(":memory:"))
    check_expectations(expecting(EXPECTED_VERSION, b"-1"), versions, 0)
    versions.add([Record(key=b"a", offset=3)], 4)
    check_expectations(expecting(EXPECTED_VERSION, b"3"), versions, 4)
    with pytest.raises(ExpectationFailed, match="the version of key b'a' is 3, expected -1"):
        check_expectations(expecting(EXPECTED_VERSION, b"-1"), versions, 4)
    versions.close()


@pytest.mark.parametrize("value", [None, b"", b"seven", "\uff17".encode(), b"\xff"])
def test_header_that_is_not_a_number_is_rejected(value: bytes | None) -> None:
    versions = KeyVersions(Path(":memory:"))
    with pytest.raises(InvalidError, match="expected a whole number"):
        check_expectations(expecting(EXPECTED_OFFSET, value), versions, 0)
    versions.close()


def test_expected_version_without_a_key_is_rejected() -> None:
    versions = KeyVersions(Path(":memory:"))
    with pytest.raises(InvalidError, match="has no key"):
        check_expectations(expecting(EXPECTED_VERSION, b"1", key=None), versions, 0)
    versions.close()


def conditional(broker: Broker, topic: str = "accounts") -> None:
    with Client(broker.bootstrap_servers) as client:
        client.create_topic(topic, partitions=1, configs={"headwater.conditional.append": "true"})


def append(broker: Broker, value: bytes, key: bytes = b"a", **headers: int) -> int | None:
    """Append one record as its own batch; return None if its condition is false."""
    names = {"offset": EXPECTED_OFFSET, "version": EXPECTED_VERSION}
    conditions = tuple((names[name], str(number).encode()) for name, number in headers.items())
    with Client(broker.bootstrap_servers) as client:
        try:
            return client.produce(
                ACCOUNTS, encode_batch([Record(key=key, value=value, headers=conditions, timestamp_ms=1)])
            )
        except UnavailableError as error:
            assert "expected" in str(error)
            return None


def test_the_second_of_two_appends_on_the_same_version_is_rejected() -> None:
    with Broker() as broker:
        conditional(broker)
        assert append(broker, b"opened", version=-1) == 0
        assert append(broker, b"first", version=0) == 1
        assert append(broker, b"second", version=0) is None
        assert append(broker, b"other key", key=b"b", version=-1) == 2
        assert append(broker, b"again", version=1) == 3
        assert append(broker, b"at the end", offset=4) == 4
        assert append(broker, b"too late", offset=4) is None


def test_versions_survive_a_restart_and_the_loss_of_their_file(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        conditional(broker)
        assert append(broker, b"opened", version=-1) == 0
    with Broker(tmp_path) as broker:
        assert append(broker, b"from nothing", version=-1) is None
        assert append(broker, b"continues", version=0) == 1
    for path in tmp_path.glob("log/*/versions.db*"):
        path.unlink()
    with Broker(tmp_path) as broker:
        assert append(broker, b"stale", version=0) is None
        assert append(broker, b"fresh", version=1) == 2


def test_a_topic_without_conditional_append_ignores_the_headers() -> None:
    with Broker() as broker:
        with Client(broker.bootstrap_servers) as client:
            client.create_topic("accounts", partitions=1)
        assert append(broker, b"x", version=17) == 0


def test_concurrent_writers_write_each_version_once() -> None:
    """Ten clients each read the version, append with it as the condition, and retry if another was faster."""
    with Broker() as broker:
        conditional(broker)

        def write(number: int) -> int:
            version, refused = -1, 0
            for _ in range(10):
                while (offset := append(broker, b"%d" % number, version=version)) is None:
                    refused += 1
                    with Client(broker.bootstrap_servers) as client:
                        version = client.offsets([ACCOUNTS], LATEST)[ACCOUNTS] - 1
                version = offset
            return refused

        with ThreadPoolExecutor(10) as pool:
            list(pool.map(write, range(10)))
        with Client(broker.bootstrap_servers) as client:
            assert client.offsets([ACCOUNTS], LATEST)[ACCOUNTS] == 100
