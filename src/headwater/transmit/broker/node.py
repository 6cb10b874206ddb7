"""The state of one broker, which the handlers work on.

On disk, below the broker's directory:

    broker.lock                    held by the process that runs it
    meta.db                        SQLite: topics, committed offsets, producer ids, groups, transactions
    log/<topic>-<partition>-<id>/  the segments of a partition
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from headwater.clock import Clock
from headwater.errors import InvalidError
from headwater.transmit.broker.fetch_sessions import FetchSessions
from headwater.transmit.broker.monitoring.counters import Counters
from headwater.transmit.broker.request_memory import RequestMemory
from headwater.transmit.groups.classic import ClassicGroups
from headwater.transmit.groups.consumer import ConsumerGroups
from headwater.transmit.groups.kinds import GroupKinds
from headwater.transmit.groups.share.share_groups import ShareGroups
from headwater.transmit.groups.store import GroupStore
from headwater.transmit.log.partition import LogSettings
from headwater.transmit.quotas import Entity, Quotas
from headwater.transmit.topics.catalog import Catalog
from headwater.transmit.topics.group_commit import Durability
from headwater.transmit.topics.topics import Topics
from headwater.transmit.transactions.coordinator import Coordinator, TransactionSettings
from headwater.transmit.transactions.store import TransactionStore

logger = logging.getLogger(__name__)

NODE_ID = 1
CLUSTER_ID = "headwater"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Settings of a broker, named as in Kafka with `_` in place of `.`."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 9092
    advertised_host: str | None = None
    """The host that clients connect to; defaults to the listening host."""
    num_partitions: int = 1
    """Number of partitions of a topic that is created without one."""
    auto_create_topics_enable: bool = True
    durability: Durability = Durability.FSYNC
    """Also accepts the name as text."""
    segment_bytes: int = 1 << 30
    message_max_bytes: int = 1_048_588
    log_retention_check_interval_ms: int = 300_000
    log_cleaner_backoff_ms: int = 15_000
    producer_id_expiration_ms: int = 86_400_000
    transaction_max_timeout_ms: int = 15 * 60_000
    transactional_id_expiration_ms: int = 7 * 86_400_000
    group_initial_rebalance_delay_ms: int = 0
    """Time that the first member of an empty group waits for others; Kafka's default is 3000."""
    accept_any_replication_factor: bool = False
    """Create topics with one replica even if more are requested, instead of returning an error."""
    queued_max_request_bytes: int = 128 << 20
    """Limit on the requests that are being received or wait for the disk; above it the broker stops reading."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "durability", Durability(self.durability))
        except ValueError:
            raise InvalidError(
                f"invalid durability {self.durability!r}: expected one of {', '.join(Durability)}"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of this node for clients."""

    host: str
    port: int


@dataclass(slots=True, kw_only=True)
class Node:
    """The parts of a running broker. Used only from its event loop."""

    settings: BrokerSettings
    endpoint: Endpoint
    clock: Clock
    catalog: Catalog
    topics: Topics
    transactions: Coordinator
    group_store: GroupStore
    group_kinds: GroupKinds
    classic_groups: ClassicGroups
    consumer_groups: ConsumerGroups
    share_groups: ShareGroups
    fetch_sessions: FetchSessions
    request_memory: RequestMemory
    counters: Counters
    quotas: Quotas


def open_node(settings: BrokerSettings, endpoint: Endpoint, clock: Clock) -> Node:
    """Open the data directory, and recover from a crash if needed."""
    catalog = Catalog(settings.data / "meta.db")
    topics = Topics(
        settings.data / "log",
        catalog,
        log_settings=LogSettings(segment_bytes=settings.segment_bytes),
        durability=settings.durability,
        static_configs={
            "advertised.listeners": f"PLAINTEXT://{endpoint.host}:{endpoint.port}",
            "num.partitions": str(settings.num_partitions),
            "auto.create.topics.enable": str(settings.auto_create_topics_enable).lower(),
            "message.max.bytes": str(settings.message_max_bytes),
            "group.initial.rebalance.delay.ms": str(settings.group_initial_rebalance_delay_ms),
            "headwater.any.replication.factor": str(settings.accept_any_replication_factor).lower(),
            "log.dirs": str(settings.data / "log"),
            "log.retention.check.interval.ms": str(settings.log_retention_check_interval_ms),
            "log.cleaner.backoff.ms": str(settings.log_cleaner_backoff_ms),
        },
    )
    for partition in topics.partitions():
        if partition.log.damage:
            logger.error(
                "opened %s read-only up to a corrupt batch, nothing was truncated: %s",
                partition.name,
                partition.log.damage,
            )
    transactions = Coordinator(
        TransactionStore(settings.data / "meta.db"),
        topics,
        TransactionSettings(
            timeout_ms_max=settings.transaction_max_timeout_ms,
            id_expiration_ms=settings.transactional_id_expiration_ms,
        ),
        clock.now_ms,
    )
    group_store = GroupStore(settings.data / "meta.db")
    classic_groups = ClassicGroups(settings.group_initial_rebalance_delay_ms / 1000)
    consumer_groups = ConsumerGroups(topics.sizes)
    return Node(
        settings=settings,
        endpoint=endpoint,
        clock=clock,
        catalog=catalog,
        topics=topics,
        transactions=transactions,
        group_store=group_store,
        group_kinds=GroupKinds(group_store, classic_groups, consumer_groups),
        classic_groups=classic_groups,
        consumer_groups=consumer_groups,
        share_groups=ShareGroups(topics, group_store, clock),
        fetch_sessions=FetchSessions(),
        request_memory=RequestMemory(settings.queued_max_request_bytes),
        counters=Counters(),
        quotas=Quotas({Entity(*names): values for names, values in catalog.quotas().items()}),
    )
