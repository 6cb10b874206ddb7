"""Apply a topic's configs to record batches before they are written. Pure: batches are changed in place."""

from headwater.errors import InvalidError
from headwater.record import TopicPartition
from headwater.transmit.configs import TopicConfig
from headwater.transmit.records.batch_header import BatchHeader
from headwater.transmit.records.rewrite import all_have_keys, raw_records, recompress, stamp


class TooLarge(InvalidError):
    """A record batch is larger than the topic's max.message.bytes."""


class RejectedRecords(InvalidError):
    """A batch is rejected because of the records at `places`, their positions in the batch."""

    def __init__(self, message: str, places: tuple[int, ...], reason: str) -> None:
        super().__init__(message)
        self.places = places
        self.reason = reason


def admit(
    name: TopicPartition, records: memoryview, headers: list[BatchHeader], config: TopicConfig, now_ms: int
) -> list[BatchHeader]:
    """Check valid batches against the topic's configs, and set the log's time if it uses LogAppendTime."""
    for header in headers:
        if header.size > config.max_message_bytes:
            raise TooLarge(
                f"cannot append to {name}: a record batch has {header.size} bytes, "
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


def recompress_batches(
    name: TopicPartition, records: memoryview, headers: list[BatchHeader], config: TopicConfig
) -> tuple[memoryview, list[BatchHeader]]:
    """Compress admitted batches by the topic's compression.type; those that already are stay unchanged."""
    compression = config.compression
    if compression is None or all(header.compression is compression for header in headers):
        return records, headers
    parts, new_headers, at = [], [], 0
    for header in headers:
        if header.compression is compression:
            parts.append(bytes(records[at : at + header.size]))
            new_headers.append(header)
        else:
            changed, part = recompress(records, at, header, compression)
            if changed.size > config.max_message_bytes:
                raise TooLarge(
                    f"cannot append to {name}: a record batch of {header.size} bytes has {changed.size} with "
                    f"compression.type={compression.name.lower()}, max.message.bytes is {config.max_message_bytes}"
                )
            parts.append(part)
            new_headers.append(changed)
        at += header.size
    return memoryview(bytearray(b"".join(parts))), new_headers


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
