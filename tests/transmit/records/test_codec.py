"""Variable-length integers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.transmit.records.codec import read_uvarint, read_varint, write_uvarint, write_varint


@given(st.integers(0, 2**64 - 1), st.binary(), st.binary())
def test_unsigned_varint_round_trip_returns_the_position_after_it(value: int, before: bytes, after: bytes) -> None:
    data = before + write_uvarint(value) + after
    assert read_uvarint(data, len(before)) == (value, len(data) - len(after))


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_varint_round_trip(value: int) -> None:
    data = write_varint(value)
    assert read_varint(data, 0) == (value, len(data))
    assert len(data) <= 10


@pytest.mark.parametrize(("value", "data"), [(0, "00"), (-1, "01"), (1, "02"), (-65, "8101"), (300, "d804")])
def test_signed_varints_have_kafkas_bytes(value: int, data: str) -> None:
    assert write_varint(value) == bytes.fromhex(data)


def test_truncated_varint_raises_an_index_error() -> None:
    with pytest.raises(IndexError):
        read_uvarint(b"\xff\xff", 0)


def test_varint_without_an_end_is_rejected_after_ten_bytes() -> None:
    with pytest.raises(ValueError, match="ten bytes"):
        read_uvarint(b"\xff" * 1_000_000, 0)
