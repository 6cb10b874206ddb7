"""The broker's metrics in Prometheus' text format, with the names that Kafka dashboards use.

Offsets and lags are named as in kafka_exporter, the lag in seconds as in kafka-lag-exporter, process metrics as in
Prometheus' own clients; metrics that only Headwater has start with `headwater_`.
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

import os
from collections.abc import Iterator
from pathlib import Path

from headwater.errors import CorruptError
from headwater.record import TopicPartition
from headwater.transmit.broker.monitoring.retention_risk import groups_at_risk
from headwater.transmit.broker.node import Node
from headwater.transmit.log.partition import OffsetOutOfRange, PartitionLog
from headwater.transmit.records.attributes import LOG_APPEND_TIME
from headwater.transmit.records.batch_header import check_batch
from headwater.transmit.records.rewrite import raw_records
from headwater.transmit.wire.apis import APIS

Sample = tuple[dict[str, object], float]


def render(node: Node) -> str:
    """Return the current value of every metric."""
    return "".join((*_topics(node), *_groups(node), *_work(node), *_quotas(node)))


def _topics(node: Node) -> Iterator[str]:
    entries = node.topics.entries()
    logs = list(_logs(node))
    yield _metric("kafka_brokers", "gauge", "Brokers of the cluster.", [({}, 1)])
    yield _metric(
        "kafka_topic_partitions", "gauge", "Partitions of a topic.",
        [({"topic": entry.name}, entry.partitions) for entry in entries],
    )  # fmt: skip
    yield _metric(
        "kafka_topic_partition_current_offset", "gauge", "The offset of the next visible record.",
        [(_labels(name), log.high_watermark) for name, log in logs],
    )  # fmt: skip
    yield _metric(
        "kafka_topic_partition_oldest_offset", "gauge", "The offset of the oldest record.",
        [(_labels(name), log.start_offset) for name, log in logs],
    )  # fmt: skip
    yield _metric(
        "headwater_topic_partition_size_bytes", "gauge", "Size of a partition on disk, in bytes.",
        [(_labels(name), log.size_bytes) for name, log in logs],
    )  # fmt: skip


def _groups(node: Node) -> Iterator[str]:
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
    yield _metric("kafka_consumergroup_current_offset", "gauge", "The offset that a group has committed.", offsets)
    yield _metric("kafka_consumergroup_lag", "gauge", "Records that a group has not committed yet.", lags)
    yield _metric(
        "headwater_consumergroup_at_risk_records", "gauge",
        "Records that a group has not committed and that retention will delete soon.", at_risk,
    )  # fmt: skip
    yield _metric(
        "kafka_consumergroup_group_lag_seconds", "gauge",
        "Age of the oldest record that a group has not committed yet.", seconds,
    )  # fmt: skip


def _work(node: Node) -> Iterator[str]:
    counters, memory, commit = node.counters, node.request_memory, node.topics.commit
    counts: list[Sample] = []
    times: list[Sample] = []
    for key, (count, seconds) in sorted(counters.requests.items()):
        labels: dict[str, object] = {"api": APIS[key].request.name.removesuffix("Request")}
        counts.append((labels, count))
        times.append((labels, seconds))
    yield _metric("headwater_requests_total", "counter", "Requests answered.", counts)
    yield _metric(
        "headwater_request_seconds_total", "counter", "Total time to answer requests, including waiting.", times
    )  # fmt: skip
    for name, kind, about, value in (
        ("headwater_bytes_in_total", "counter", "Bytes of requests.", counters.bytes_in),
        ("headwater_bytes_out_total", "counter", "Bytes of responses.", counters.bytes_out),
        ("headwater_connections", "gauge", "Open connections.", counters.connections),
        ("headwater_queued_request_bytes", "gauge", "Bytes of unanswered requests.", memory.held_bytes),
        ("headwater_throttled_connections", "gauge", "Connections that wait for request memory.", memory.waiting),
        ("headwater_fsync_total", "counter", "Files synced to the disk.", commit.syncs),
        ("headwater_fsync_seconds_total", "counter", "Time spent waiting for the disk.", commit.seconds),
    ):
        yield _metric(name, kind, about, [({}, value)])
    if (resident := _resident_bytes()) is not None:
        yield _metric("process_resident_memory_bytes", "gauge", "Memory of the process.", [({}, resident)])


def _quotas(node: Node) -> Iterator[str]:
    counts: list[Sample] = []
    times: list[Sample] = []
    for (kind, entity), meter in sorted(node.quotas.meters.items(), key=lambda item: str(item[0])):
        labels: dict[str, object] = {
            "quota": kind.value, "user": entity.user or "", "client_id": entity.client_id or ""
        }  # fmt: skip
        counts.append((labels, meter.throttled))
        times.append((labels, meter.throttled_s))
    yield _metric(
        "headwater_quota_throttled_total", "counter", "Responses with a throttle time.", counts
    )  # fmt: skip
    yield _metric(
        "headwater_quota_throttled_seconds_total", "counter", "Total seconds of throttle time.", times
    )  # fmt: skip
    yield _metric(
        "headwater_quota_resting_connections", "gauge", "Connections that are throttled by a quota.",
        [({}, node.counters.throttled)],
    )  # fmt: skip


def _logs(node: Node) -> Iterator[tuple[TopicPartition, PartitionLog]]:
    for entry in node.topics.entries():
        for number in range(entry.partitions):
            partition = node.topics.partition(entry.name, number)
            if partition is not None:
                yield TopicPartition(entry.name, number), partition.log


def _time_of_next(node: Node, log: PartitionLog, offset: int) -> int | None:
    """Return the timestamp of the next record to read; cached for groups whose offset has not changed."""
    known = node.counters.record_times.get((log, offset))
    if known is not None:
        return known
    try:
        return _time_of(log, max(offset, log.start_offset))
    except (OffsetOutOfRange, CorruptError, OSError):  # consumers get the error; the other metrics stay available
        return None


def _time_of(log: PartitionLog, offset: int) -> int | None:
    """Return the timestamp of the first visible record at or after the offset, or None."""
    while offset < log.high_watermark:
        data = log.read(offset, 1)
        if not data:
            return None
        header = check_batch(data)
        if not header.is_control:
            if header.attributes & LOG_APPEND_TIME:
                return header.max_timestamp  # the timestamp of every record of the batch
            for record in raw_records(data, 0, header):
                if record.offset >= offset:
                    return record.timestamp_ms
        offset = header.next_offset  # a control batch, or compaction has removed the rest of the batch
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
        return None  # only Linux has this file
    return pages * os.sysconf("SC_PAGE_SIZE")
