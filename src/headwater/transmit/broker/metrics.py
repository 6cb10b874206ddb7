"""The broker's figures in Prometheus' text form, under the names that dashboards for Kafka know.

Offsets and lags are named as kafka_exporter does, the lag in seconds as kafka-lag-exporter does, the process as
Prometheus' own clients do; what only we have starts with `headwater_`.
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

import os
from collections.abc import Iterator
from pathlib import Path

from headwater.errors import CorruptError
from headwater.record import TopicPartition
from headwater.transmit.broker.node import Node
from headwater.transmit.broker.retention_risk import groups_at_risk
from headwater.transmit.log.partition import OffsetOutOfRange, PartitionLog
from headwater.transmit.records.batch import LOG_APPEND_TIME, check_batch
from headwater.transmit.records.rewrite import raw_records
from headwater.transmit.wire.apis import APIS

Sample = tuple[dict[str, object], float]


def render(node: Node) -> str:
    """Every metric as it stands now."""
    return "".join((*_of_topics(node), *_of_groups(node), *_of_work(node), *_of_quotas(node)))


def _of_topics(node: Node) -> Iterator[str]:
    entries = node.topics.entries()
    logs = list(_logs(node))
    yield _metric("kafka_brokers", "gauge", "Brokers of the cluster.", [({}, 1)])
    yield _metric(
        "kafka_topic_partitions", "gauge", "Partitions of a topic.",
        [({"topic": entry.name}, entry.partitions) for entry in entries],
    )  # fmt: skip
    yield _metric(
        "kafka_topic_partition_current_offset", "gauge", "Where the next visible record goes.",
        [(_labels(name), log.high_watermark) for name, log in logs],
    )  # fmt: skip
    yield _metric(
        "kafka_topic_partition_oldest_offset", "gauge", "The oldest record that is still there.",
        [(_labels(name), log.start_offset) for name, log in logs],
    )  # fmt: skip
    yield _metric(
        "headwater_topic_partition_size_bytes", "gauge", "Bytes of a partition on the disk.",
        [(_labels(name), log.size_bytes) for name, log in logs],
    )  # fmt: skip


def _of_groups(node: Node) -> Iterator[str]:
    now_ms = node.clock.now_ms()
    offsets: list[Sample] = []
    lags: list[Sample] = []
    seconds: list[Sample] = []
    times: dict[tuple[object, int], int] = {}
    for group in node.catalog.groups():
        for name, committed in sorted(node.catalog.committed_offsets(group).items()):
            partition = node.topics.partition(name.topic, name.partition)
            if partition is None:
                continue
            labels = {"consumergroup": group, **_labels(name)}
            offsets.append((labels, committed.offset))
            lags.append((labels, max(partition.log.high_watermark - committed.offset, 0)))
            lag_s = 0.0
            if (time_ms := _time_of_next(node, partition.log, committed.offset)) is not None:
                times[partition.log, committed.offset] = time_ms
                lag_s = max(now_ms - time_ms, 0) / 1000
            seconds.append(({"group": group, **_labels(name)}, lag_s))
    node.counters.record_times = times
    at_risk: list[Sample] = [
        ({"consumergroup": each.group, **_labels(each.partition)}, each.records)
        for each in groups_at_risk(node.catalog, node.topics, node.share_groups, now_ms)
    ]
    members: list[Sample] = [
        ({"consumergroup": group.id}, len(group.members)) for group in node.classic_groups.all()
    ]
    yield _metric("kafka_consumergroup_members", "gauge", "Members of a group.", members)
    yield _metric("kafka_consumergroup_current_offset", "gauge", "What a group has committed.", offsets)
    yield _metric("kafka_consumergroup_lag", "gauge", "Records that a group has not committed yet.", lags)
    yield _metric(
        "headwater_consumergroup_at_risk_records", "gauge",
        "Records that a group has not committed and that retention will delete soon.", at_risk,
    )  # fmt: skip
    yield _metric(
        "kafka_consumergroup_group_lag_seconds", "gauge",
        "Age of the oldest record that a group has not committed yet.", seconds,
    )  # fmt: skip


def _of_work(node: Node) -> Iterator[str]:
    counters, intake, commit = node.counters, node.request_memory, node.topics.commit
    counts: list[Sample] = []
    times: list[Sample] = []
    for key, (count, seconds) in sorted(counters.requests.items()):
        who: dict[str, object] = {"api": APIS[key].request.name.removesuffix("Request")}
        counts.append((who, count))
        times.append((who, seconds))
    yield _metric("headwater_requests_total", "counter", "Requests answered.", counts)
    yield _metric(
        "headwater_request_seconds_total", "counter", "Time until they were answered, waiting included.", times
    )  # fmt: skip
    for name, kind, about, value in (
        ("headwater_bytes_in_total", "counter", "Bytes of requests.", counters.bytes_in),
        ("headwater_bytes_out_total", "counter", "Bytes of answers.", counters.bytes_out),
        ("headwater_connections", "gauge", "Open connections.", counters.connections),
        ("headwater_queued_request_bytes", "gauge", "Bytes of unanswered requests.", intake.held_bytes),
        ("headwater_throttled_connections", "gauge", "Connections that wait for room.", intake.waiting),
        ("headwater_fsync_total", "counter", "Files synced to the disk.", commit.syncs),
        ("headwater_fsync_seconds_total", "counter", "Time spent waiting for the disk.", commit.seconds),
    ):
        yield _metric(name, kind, about, [({}, value)])
    if (memory := _resident_bytes()) is not None:
        yield _metric("process_resident_memory_bytes", "gauge", "Memory of the process.", [({}, memory)])


def _of_quotas(node: Node) -> Iterator[str]:
    counts: list[Sample] = []
    times: list[Sample] = []
    for (kind, entity), meter in sorted(node.quotas.meters.items(), key=lambda item: str(item[0])):
        who: dict[str, object] = {
            "quota": kind.value, "user": entity.user or "", "client_id": entity.client_id or ""
        }  # fmt: skip
        counts.append((who, meter.throttled))
        times.append((who, meter.throttled_s))
    yield _metric(
        "headwater_quota_throttled_total", "counter", "Answers that asked a client to rest.", counts
    )  # fmt: skip
    yield _metric(
        "headwater_quota_throttled_seconds_total", "counter", "Seconds they asked for together.", times
    )  # fmt: skip
    yield _metric(
        "headwater_quota_resting_connections", "gauge", "Connections not read from because of a quota.",
        [({}, node.counters.resting)],
    )  # fmt: skip


def _logs(node: Node) -> Iterator[tuple[TopicPartition, PartitionLog]]:
    for entry in node.topics.entries():
        for number in range(entry.partitions):
            partition = node.topics.partition(entry.name, number)
            if partition is not None:
                yield TopicPartition(entry.name, number), partition.log


def _time_of_next(node: Node, log: PartitionLog, offset: int) -> int | None:
    """The timestamp of the next record to be read; of a group that stands still it is not looked for again."""
    known = node.counters.record_times.get((log, offset))
    if known is not None:
        return known
    try:
        return _time_of(log, max(offset, log.start_offset))
    except (OffsetOutOfRange, CorruptError, OSError):  # a reader gets the error; a scraper gets the other figures
        return None


def _time_of(log: PartitionLog, offset: int) -> int | None:
    """The timestamp of the first record at or behind the offset; None if none can be seen."""
    while offset < log.high_watermark:
        data = log.read(offset, 1)
        if not data:
            return None
        header = check_batch(data)
        if not header.is_control:
            if header.attributes & LOG_APPEND_TIME:
                return header.max_timestamp  # of all its records, so that none has to be unpacked
            for record in raw_records(data, 0, header):
                if record.offset >= offset:
                    return record.timestamp_ms
        offset = header.next_offset  # it was a marker, or compaction has taken the rest of the batch
    return None


def _labels(name: TopicPartition) -> dict[str, object]:
    return {"topic": name.topic, "partition": name.partition}


def _metric(name: str, kind: str, about: str, samples: list[Sample]) -> str:
    lines = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escape(str(content))}"' for label, content in labels.items())
        lines.append(f"{name}{{{inside}}} {value:.17g}" if inside else f"{name} {value:.17g}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _resident_bytes() -> int | None:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None  # only Linux tells it this way
    return pages * os.sysconf("SC_PAGE_SIZE")
