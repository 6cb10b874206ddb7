"""Headers of requests and responses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import InvalidError
from headwater.transmit.wire.apis import APIS, is_flexible
from headwater.transmit.wire.frame import read_request_header, response_header, skip_tags

EVERY_VERSION = [(api.key, v) for api in APIS.values() for v in range(api.version_min, api.version_max + 1)]
KNOWN_TO_KAFKA_PYTHON = [
    (key, v) for key, v in EVERY_VERSION
    if APIS[key].request.valid_versions[0] <= v <= APIS[key].request.valid_versions[1]
]  # fmt: skip


@pytest.mark.parametrize(("key", "version"), KNOWN_TO_KAFKA_PYTHON)
def test_read_header_of_every_listed_request(key: int, version: int) -> None:
    request = APIS[key].request()
    request.API_VERSION = version
    request.with_header(correlation_id=2**31 - 1, client_id="klänt")
    body = bytes(request.encode(version=version))
    frame = bytes(request.encode(version=version, header=True))
    header = read_request_header(memoryview(frame), is_flexible=is_flexible)
    assert (header.api_key, header.api_version, header.correlation_id) == (key, version, 2**31 - 1)
    assert header.client_id == "klänt"
    assert frame[header.body_at :] == body


def test_kafka_python_has_every_listed_version_except_oldest_produce() -> None:
    assert [row for row in EVERY_VERSION if row not in KNOWN_TO_KAFKA_PYTHON] == [(0, 0), (0, 1), (0, 2)]


def test_read_header_without_client_id() -> None:
    header = read_request_header(bytearray(b"\x00\x03\x00\x01\x00\x00\x00\x05\xff\xff"), is_flexible=is_flexible)
    assert (header.client_id, header.body_at) == ("", 10)


@given(st.binary(max_size=60))
def test_random_bytes_are_read_or_invalid(data: bytes) -> None:
    try:
        read_request_header(bytearray(data), is_flexible=is_flexible)
    except InvalidError as error:
        assert "not a Kafka request" in str(error)


def test_header_with_endless_tags_is_invalid() -> None:
    frame = b"\x00\x12\x00\x03\x00\x00\x00\x05\xff\xff" + b"\xff" * 1000
    with pytest.raises(InvalidError):
        read_request_header(bytearray(frame), is_flexible=is_flexible)


def test_skip_tagged_fields() -> None:
    tags = b"\x02" + b"\x00\x03abc" + b"\x05\x00"
    assert skip_tags(bytearray(b"??" + tags + b"!"), 2) == 2 + len(tags)


def test_flexible_response_header_has_tags() -> None:
    assert response_header(258, flexible=False) == b"\x00\x00\x01\x02"
    assert response_header(258, flexible=True) == b"\x00\x00\x01\x02\x00"
