"""The configs of topics, the broker and groups in one table: name, type, default and description.

Names and defaults are Kafka's, except for `remote.archive.dir` and those that start with `headwater.`. A topic's
value is the one set on the topic, else the broker's (whose name may differ: `log.retention.ms` for
`retention.ms`), else the default. Pure: nothing is read or written here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from headwater.errors import InvalidError
from headwater.transmit.records.attributes import Compression
from headwater.transmit.records.compression import is_available


class ConfigResource(IntEnum):
    """The kind of resource that a config belongs to, with Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class ConfigType(IntEnum):
    """The type of a value, with Kafka's numbers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """The origin of a value, with Kafka's numbers."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class InvalidConfig(InvalidError):
    """A config does not exist, or its value is not allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One row of the table."""

    name: str
    type: ConfigType
    default: str
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    broker_name: str | None = None
    """For a topic's config: the broker's config with its default."""
    read_only: bool = False
    """Can be set when the broker starts, but not while it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """The current value of a config, and its origin."""

    config: Config
    value: str
    source: ConfigSource
    synonyms: tuple[tuple[str, str, ConfigSource], ...] = ()
    """Name, value and source of every config that applies, the effective one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The configs of a topic that the broker uses, parsed; -1 for no limit."""

    compact: bool
    delete: bool
    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    segment_ms: int
    max_message_bytes: int
    log_append_time: bool
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
    durability: str
    archive_dir: str
    conditional_append: bool
    compression: Compression | None
    """The codec of stored batches; None to keep the producer's."""


_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1


def _int(name: str, default: int, doc: str, low: int = 0, broker_name: str | None = None) -> Config:
    return Config(
        name=name,
        type=ConfigType.INT,
        default=str(default),
        doc=doc,
        low=low,
        high=_INT_MAX,
        broker_name=broker_name,
    )


def _long(name: str, default: int, doc: str, low: int = 0, broker_name: str | None = None) -> Config:
    return replace(_int(name, default, doc, low, broker_name), type=ConfigType.LONG, high=_LONG_MAX)


def _text(
    name: str, default: str, doc: str, choices: tuple[str, ...] = (), broker_name: str | None = None
) -> Config:
    return Config(
        name=name, type=ConfigType.STRING, default=default, doc=doc, choices=choices, broker_name=broker_name
    )


def _flag(name: str, default: str, doc: str, broker_name: str | None = None) -> Config:
    return Config(name=name, type=ConfigType.BOOLEAN, default=default, doc=doc, broker_name=broker_name)


_DAY_MS = 24 * 3600 * 1000
COMPRESSION_TYPE = "compression.type"
DURABILITIES = ("fsync", "interval", "never")

_TOPIC_TABLE = (
    Config(
        name="cleanup.policy", type=ConfigType.LIST, default="delete", choices=("delete", "compact"),
        broker_name="log.cleanup.policy",
        doc="How to clean up old records: delete them, compact them by key, or both.",
    ),
    _text("compression.type", "producer", "Codec of stored batches; 'producer' keeps the producer's.",
          ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), "compression.type"),
    _long("delete.retention.ms", _DAY_MS, "How long compaction keeps tombstones of deleted keys.",
          broker_name="log.cleaner.delete.retention.ms"),
    _long("file.delete.delay.ms", 60_000, "Has no effect: deleted files stay readable until they are closed.",
          broker_name="log.segment.delete.delay.ms"),
    _long("flush.messages", _LONG_MAX, "Has no effect: headwater.durability defines when records are synced.", 1,
          "log.flush.interval.messages"),
    _long("flush.ms", _LONG_MAX, "Has no effect: headwater.durability defines when records are synced.", 0,
          "log.flush.interval.ms"),
    _flag("headwater.conditional.append", "false",
          "Enable conditional append: records may have headers with conditions.",
          "headwater.conditional.append"),
    _text("headwater.durability", "fsync",
          "When records are synced to disk: before they are acknowledged, at an interval, or never.",
          DURABILITIES, "headwater.durability"),
    _int("index.interval.bytes", 4096, "Has no effect: the index has an entry every 4096 bytes.", 0,
         "log.index.interval.bytes"),
    _long("max.compaction.lag.ms", _LONG_MAX, "Maximum time before a record is compacted.", 1,
          "log.cleaner.max.compaction.lag.ms"),
    _int("max.message.bytes", 1_048_588, "Maximum size of a record batch.", 0, "message.max.bytes"),
    _long("message.timestamp.after.max.ms", 3_600_000, "Has no effect: timestamps are not checked.", 0,
          "log.message.timestamp.after.max.ms"),
    _long("message.timestamp.before.max.ms", _LONG_MAX, "Has no effect: timestamps are not checked.", 0,
          "log.message.timestamp.before.max.ms"),
    _text("message.timestamp.type", "CreateTime", "The timestamp of records: the producer's or the log's.",
          ("CreateTime", "LogAppendTime"), "log.message.timestamp.type"),
    Config(
        name="min.cleanable.dirty.ratio", type=ConfigType.DOUBLE, default="0.5", low=0.0, high=1.0,
        broker_name="log.cleaner.min.cleanable.ratio",
        doc="Compact when this ratio of the log is not compacted yet.",
    ),
    _long("min.compaction.lag.ms", 0, "Minimum time before a record may be removed by compaction.", 0,
          "log.cleaner.min.compaction.lag.ms"),
    _int("min.insync.replicas", 1, "Has no effect: there is one replica.", 1, "min.insync.replicas"),
    _flag("preallocate", "false", "Has no effect: segments grow as they are written.", "log.preallocate"),
    _text("remote.archive.dir", "",
          "Directory to move expired segments to instead of deleting them; they stay readable.",
          (), "headwater.remote.archive.dir"),
    _long("retention.bytes", -1,
          "Maximum size of a partition before its oldest segments are deleted; -1 for no limit.", -1,
          "log.retention.bytes"),
    _long("retention.ms", 7 * _DAY_MS,
          "Maximum age of a segment's newest record before the segment is deleted; -1 for no limit.", -1,
          "log.retention.ms"),
    _int("segment.bytes", 1 << 30, "Maximum size of a segment before a new one is started.", 14,
         "log.segment.bytes"),
    _int("segment.index.bytes", 10_485_760, "Has no effect: indexes grow as needed.", 4,
         "log.index.size.max.bytes"),
    _long("segment.jitter.ms", 0, "Has no effect: segments roll without jitter.", 0, "log.roll.jitter.ms"),
    _long("segment.ms", 7 * _DAY_MS, "Maximum age of a segment before a new one is started.", 1, "log.roll.ms"),
    _flag("unclean.leader.election.enable", "false", "Has no effect: there is one replica.",
          "unclean.leader.election.enable"),
)  # fmt: skip

_BROKER_ONLY = (
    Config(
        name="advertised.listeners",
        type=ConfigType.LIST,
        default="",
        doc="Addresses for clients to connect to.",
    ),
    _flag("auto.create.topics.enable", "true", "Create a topic when a client first requests it."),
    _flag("delete.topic.enable", "true", "Has no effect: topics can be deleted."),
    _int("broker.id", 1, "The id of this node."),
    _int("node.id", 1, "The id of this node."),
    _int("default.replication.factor", 1, "There is one replica.", 1),
    _int("group.initial.rebalance.delay.ms", 0, "How long the first member of an empty group waits for others."),
    _flag(
        "headwater.any.replication.factor",
        "false",
        "Accept topics with any replication factor; they get one replica.",
    ),
    _flag("log.cleaner.enable", "true", "Compact topics whose cleanup.policy includes compact."),
    _long("log.cleaner.backoff.ms", 15_000, "How often to check for logs to compact.", 1),
    _text("log.dirs", "", "Directory of the log."),
    _long("log.retention.check.interval.ms", 300_000, "How often to check for expired segments.", 1),
    _int("num.partitions", 1, "Default number of partitions of a new topic.", 1),
    _int("offsets.topic.replication.factor", 1, "There is one replica.", 1),
    _int("socket.request.max.bytes", 104_857_600, "Maximum size of a request.", 1),
    _int("transaction.state.log.replication.factor", 1, "There is one replica.", 1),
    _int("transaction.state.log.min.isr", 1, "There is one replica.", 1),
)

# Heartbeats are more frequent than in Kafka (every five seconds), because a rebalance takes one or two of them.
_GROUP_TABLE = (
    _int("consumer.heartbeat.interval.ms", 1000, "How often members of a consumer group send heartbeats.", 1),
    _int("consumer.session.timeout.ms", 45_000, "A member without a heartbeat for this long is removed.", 1),
    _flag("errors.deadletterqueue.copy.record.enable", "false", "Copy the record into its dead letter."),
    _text("errors.deadletterqueue.topic.name", "",
          "Dead-letter topic for records that are rejected or reach the delivery limit."),
    _text("share.auto.offset.reset", "latest",
          "Start offset of a new share group: latest, earliest, by_duration:PT1H."),
    _int("share.delivery.count.limit", 5, "Maximum number of deliveries of a record before it is given up.", 1),
    _int("share.heartbeat.interval.ms", 1000, "How often members of a share group send heartbeats.", 1),
    _text("share.isolation.level", "read_uncommitted",
          "Deliver records of aborted transactions, or committed ones only.",
          ("read_uncommitted", "read_committed")),
    _int("share.partition.max.record.locks", 2000, "Maximum number of records of a partition in flight.", 1),
    _int("share.record.lock.duration.ms", 30_000,
         "How long a consumer may hold a record before it is released.", 1),
    _int("share.session.timeout.ms", 45_000, "A member without a heartbeat for this long is removed.", 1),
)  # fmt: skip

_FIXED = {"broker.id", "node.id", "log.dirs", "socket.request.max.bytes", "auto.create.topics.enable",
          "delete.topic.enable", "offsets.topic.replication.factor", "transaction.state.log.replication.factor",
          "transaction.state.log.min.isr", "default.replication.factor", "num.partitions",
          "log.retention.check.interval.ms", "log.cleaner.backoff.ms", "log.cleaner.enable",
          "advertised.listeners", "group.initial.rebalance.delay.ms"}  # fmt: skip


def _as_brokers(config: Config) -> Config:
    return replace(config, name=config.broker_name or config.name, broker_name=None)


def _fixed(config: Config) -> Config:
    return replace(config, read_only=config.name in _FIXED)


def _by_name(rows: tuple[Config, ...]) -> dict[str, Config]:
    return {row.name: row for row in sorted(rows, key=lambda row: row.name)}


TABLES: dict[ConfigResource, dict[str, Config]] = {
    ConfigResource.TOPIC: _by_name(_TOPIC_TABLE),
    ConfigResource.BROKER: _by_name((*map(_as_brokers, _TOPIC_TABLE), *map(_fixed, _BROKER_ONLY))),
    ConfigResource.GROUP: _by_name(_GROUP_TABLE),
}


# -- checking -------------------------------------------------------------------------------------------------


def check_config(kind: ConfigResource, name: str, value: str) -> None:
    """Raise InvalidConfig if the config does not exist, or its value is not allowed."""
    config = TABLES[kind].get(name)
    if config is None:
        raise InvalidConfig(f"unknown {kind.name.lower()} config name: {name}")
    problem = _CHECKS[config.type](config, value) or (name == COMPRESSION_TYPE and _check_codec(value))
    if problem:
        raise InvalidConfig(f"invalid value {value!r} for configuration {name}: {problem}")


def _check_codec(value: str) -> str | None:
    compression = _compression(value)
    if compression is None or is_available(compression):
        return None
    return f"the installed PyArrow was built without {value}; install PyArrow from PyPI, or use another codec"


def _compression(value: str) -> Compression | None:
    if value == "producer":
        return None
    return Compression.NONE if value == "uncompressed" else Compression[value.upper()]


def check_configs(kind: ConfigResource, values: Mapping[str, str]) -> None:
    """Check all configs of a new resource or a change."""
    for name, value in values.items():
        check_config(kind, name, value)
    if kind is ConfigResource.TOPIC:
        low, high = values.get("min.compaction.lag.ms"), values.get("max.compaction.lag.ms")
        if low is not None and high is not None and int(low) > int(high):
            raise InvalidConfig(
                f"invalid value {low!r} for configuration min.compaction.lag.ms: "
                f"it is greater than max.compaction.lag.ms, which is {high}"
            )


def _check_number(config: Config, value: str, read: Callable[[str], float]) -> str | None:
    try:
        number = read(value)
    except ValueError:
        return f"not a number of type {config.type.name}"
    if (config.low is not None and number < config.low) or (config.high is not None and number > config.high):
        return f"expected a value from {config.low} to {config.high}"
    return None


def _check_choice(config: Config, value: str) -> str | None:
    if config.choices and value not in config.choices:
        return f"expected one of {', '.join(config.choices)}"
    return None


def _check_list(config: Config, value: str) -> str | None:
    items = split_list(value)
    problem = next(filter(None, (_check_choice(config, item) for item in items)), None)
    return problem or (None if len(set(items)) == len(items) else "an item is repeated")


_CHECKS: dict[ConfigType, Callable[[Config, str], str | None]] = {
    ConfigType.BOOLEAN: lambda config, value: None if value in ("true", "false") else "expected true or false",
    ConfigType.STRING: _check_choice,
    ConfigType.LIST: _check_list,
    ConfigType.INT: lambda config, value: _check_number(config, value, int),
    ConfigType.LONG: lambda config, value: _check_number(config, value, int),
    ConfigType.DOUBLE: lambda config, value: _check_number(config, value, float),
}


# -- values ---------------------------------------------------------------------------------------------------


def split_list(value: str) -> list[str]:
    return [item.strip() for item in value.split(",") if item.strip()]


def broker_values(static: Mapping[str, str], dynamic: Mapping[str, str]) -> dict[str, ConfigValue]:
    """Return every config of the broker: changed at run time, else set at the start, else the default."""
    found = {}
    for name, config in TABLES[ConfigResource.BROKER].items():
        synonyms = [(name, dynamic[name], ConfigSource.DYNAMIC_BROKER)] if name in dynamic else []
        if name in static and static[name] != config.default:
            synonyms.append((name, static[name], ConfigSource.STATIC_BROKER))
        synonyms.append((name, config.default, ConfigSource.DEFAULT))
        found[name] = ConfigValue(
            config=config, value=synonyms[0][1], source=synonyms[0][2], synonyms=tuple(synonyms)
        )
    return found


def topic_values(on_topic: Mapping[str, str], broker: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    """Return every config of a topic: set on it, else the broker's."""
    found = {}
    for name, config in TABLES[ConfigResource.TOPIC].items():
        synonyms = [(name, on_topic[name], ConfigSource.TOPIC)] if name in on_topic else []
        synonyms += broker[config.broker_name or name].synonyms
        found[name] = ConfigValue(
            config=config, value=synonyms[0][1], source=synonyms[0][2], synonyms=tuple(synonyms)
        )
    return found


def group_values(on_group: Mapping[str, str]) -> dict[str, ConfigValue]:
    """Return every config of a group: set on it, else the default."""
    return {
        name: ConfigValue(
            config=config,
            value=on_group.get(name, config.default),
            source=ConfigSource.GROUP if name in on_group else ConfigSource.DEFAULT,
        )
        for name, config in TABLES[ConfigResource.GROUP].items()
    }


def topic_config(values: Mapping[str, ConfigValue]) -> TopicConfig:
    """Parse the configs that the broker uses."""

    def text(name: str) -> str:
        return values[name].value

    policy = split_list(text("cleanup.policy"))
    return TopicConfig(
        compact="compact" in policy,
        delete="delete" in policy,
        retention_ms=int(text("retention.ms")),
        retention_bytes=int(text("retention.bytes")),
        segment_bytes=int(text("segment.bytes")),
        segment_ms=int(text("segment.ms")),
        max_message_bytes=int(text("max.message.bytes")),
        log_append_time=text("message.timestamp.type") == "LogAppendTime",
        min_cleanable_dirty_ratio=float(text("min.cleanable.dirty.ratio")),
        min_compaction_lag_ms=int(text("min.compaction.lag.ms")),
        max_compaction_lag_ms=int(text("max.compaction.lag.ms")),
        delete_retention_ms=int(text("delete.retention.ms")),
        durability=text("headwater.durability"),
        archive_dir=text("remote.archive.dir"),
        conditional_append=text("headwater.conditional.append") == "true",
        compression=_compression(text("compression.type")),
    )


DEFAULT_TOPIC_CONFIG = topic_config(topic_values({}, broker_values({}, {})))
