"""What a topic's configs ask of record batches before they are written. Pure: the batches are changed in place."""

from headwater.errors import InvalidError
from headwater.record import TopicPartition
from headwater.transmit.configs import TopicConfig
from headwater.transmit.records.batch import BatchHeader
from headwater.transmit.records.rewrite import all_have_keys, raw_records, recompress, stamp


class TooLarge(InvalidError):
    """A record batch above the topic's max.message.bytes."""


class RejectedRecords(InvalidError):
    """Records of a batch that do not fit the topic, so that none of it is taken; `places` says which they are."""

    def __init__(self, message: str, places: tuple[int, ...], reason: str) -> None:
        super().__init__(message)
        self.places = places
        self.reason = reason


def admit(
    name: TopicPartition, records: memoryview, headers: list[BatchHeader], config: TopicConfig, now_ms: int
) -> list[BatchHeader]:
    """Check checked batches against the topic's configs and give them the log's time where it asks for that."""
    for header in headers:
        if header.size > config.max_message_bytes:
            raise TooLarge(
                f"cannot append to {name}: a record batch of {header.size} bytes, "
                f"max.message.bytes is {config.max_message_bytes}"
            )
    if config.compact:
        _check_keys(name, records, headers)
    if not config.log_append_time:
        return headers
    stamped = []
    at = 0
    for header in headers:
        stamped.append(stamp(records, at, header, now_ms))
        at += header.size
    return stamped


def stored_as(
    name: TopicPartition, records: memoryview, headers: list[BatchHeader], config: TopicConfig
) -> tuple[memoryview, list[BatchHeader]]:
    """Compress admitted batches as the topic's compression.type says; the same ones, if they are so already."""
    wanted = config.compression
    if wanted is None or all(header.compression is wanted for header in headers):
        return records, headers
    parts, fresh, at = [], [], 0
    for header in headers:
        if header.compression is wanted:
            parts.append(bytes(records[at : at + header.size]))
            fresh.append(header)
        else:
            changed, part = recompress(records, at, header, wanted)
            if changed.size > config.max_message_bytes:
                raise TooLarge(
                    f"cannot append to {name}: a record batch of {header.size} bytes has {changed.size} with "
                    f"compression.type={wanted.name.lower()}, max.message.bytes is {config.max_message_bytes}"
                )
            parts.append(part)
            fresh.append(changed)
        at += header.size
    return memoryview(bytearray(b"".join(parts))), fresh


def _check_keys(name: TopicPartition, records: memoryview, headers: list[BatchHeader]) -> None:
    at = 0
    for header in headers:
        if all_have_keys(records, at, header):
            at += header.size
            continue
        keyless = tuple(
            record.offset - header.base_offset for record in raw_records(records, at, header) if record.key is None
        )
        if keyless:
            reason = "it has no key, and the topic is compacted by key"
            raise RejectedRecords(f"cannot append to {name}: record {keyless[0]}: {reason}", keyless, reason)
        at += header.size
