"""Quotas: which one applies, throttle times in responses, and that throttled clients are not read from."""

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol import admin, consumer, producer

from headwater.errors import InvalidError
from headwater.record import EARLIEST, Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.client.quotas import alter_quotas, list_quotas
from headwater.transmit.quotas import (
    DEFAULT,
    METERS_MAX,
    REQUEST_THROTTLE_S_MAX,
    WINDOW_S,
    Bucket,
    Entity,
    Meter,
    QuotaKind,
    Quotas,
    precedence,
)
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.wire import json_messages as wire
from headwater.transmit.wire.apis import APIS, FETCH, PRODUCE, SHARE_FETCH, is_flexible
from headwater.transmit.wire.frame import LENGTH, response_header, skip_tags
from headwater.transmit.wire.throttle_time import write_throttle_time

USER, CLIENT = "ANONYMOUS", "loader"
ORDERS = TopicPartition("orders", 0)
amounts = st.lists(st.tuples(st.integers(1, 10_000), st.floats(0, 5)), min_size=1, max_size=30)


# -- which one applies ---------------------------------------------------------------------------------------


def test_the_most_specific_entity_decides() -> None:
    order = [entity for entity, _ in precedence(USER, CLIENT)]
    for place, entity in enumerate(order):
        quotas = Quotas({each: {QuotaKind.PRODUCE: 1.0 + n} for n, each in enumerate(order) if n >= place})
        assert quotas.limit(QuotaKind.PRODUCE, USER, CLIENT) == (
            1.0 + place,
            dict(precedence(USER, CLIENT))[entity],
        )


def test_each_kind_is_looked_up_separately() -> None:
    quotas = Quotas(
        {Entity(USER, CLIENT): {QuotaKind.FETCH: 5.0}, Entity(None, DEFAULT): {QuotaKind.PRODUCE: 7.0}}
    )
    assert quotas.limit(QuotaKind.PRODUCE, USER, CLIENT) == (7.0, Entity(None, CLIENT))
    assert quotas.limit(QuotaKind.FETCH, USER, CLIENT) == (5.0, Entity(USER, CLIENT))
    assert quotas.limit(QuotaKind.REQUEST, USER, CLIENT) is None
    assert quotas.use(QuotaKind.REQUEST, USER, CLIENT, 1e9, now=0.0) == 0


def test_a_users_quota_is_shared_by_its_clients_and_a_default_is_not_shared() -> None:
    quotas = Quotas({Entity(USER): {QuotaKind.PRODUCE: 10.0}, Entity(None, DEFAULT): {QuotaKind.FETCH: 10.0}})
    assert quotas.use(QuotaKind.PRODUCE, USER, "a", 100, now=0.0) == 0
    assert quotas.use(QuotaKind.PRODUCE, USER, "b", 10, now=0.0) == 1.0
    assert quotas.use(QuotaKind.FETCH, USER, "a", 100, now=0.0) == 0
    assert quotas.use(QuotaKind.FETCH, USER, "b", 100, now=0.0) == 0


def test_changing_a_quota_resets_its_usage() -> None:
    quotas = Quotas({Entity(USER): {QuotaKind.PRODUCE: 1.0}})
    assert quotas.use(QuotaKind.PRODUCE, USER, CLIENT, 100, now=0.0) == 90
    quotas.change(Entity(USER), {QuotaKind.PRODUCE: 2.0})
    assert quotas.use(QuotaKind.PRODUCE, USER, CLIENT, 20, now=0.0) == 0
    quotas.change(Entity(USER), {})
    assert quotas.table == {}


def test_a_percentage_is_of_one_threads_time_and_throttling_is_bounded() -> None:
    quotas = Quotas({Entity(USER): {QuotaKind.REQUEST: 50.0}})
    assert quotas.use(QuotaKind.REQUEST, USER, CLIENT, 5.0, now=0.0) == 0
    assert quotas.use(QuotaKind.REQUEST, USER, CLIENT, 0.25, now=0.0) == 0.5
    assert quotas.use(QuotaKind.REQUEST, USER, CLIENT, 100.0, now=0.0) == REQUEST_THROTTLE_S_MAX


def test_the_number_of_meters_is_bounded() -> None:
    quotas = Quotas({Entity(None, DEFAULT): {QuotaKind.PRODUCE: 1.0}})
    quotas.use(QuotaKind.PRODUCE, USER, "greedy", 1000, now=0.0)
    for n in range(METERS_MAX + 10):
        quotas.use(QuotaKind.PRODUCE, USER, f"client-{n}", 1, now=0.0)
    assert len(quotas.meters) <= METERS_MAX
    assert Bucket(QuotaKind.PRODUCE, Entity(None, "greedy")) in quotas.meters


@given(amounts, st.integers(1, 5000))
def test_a_client_that_obeys_throttle_times_stays_within_the_rate(
    uses: list[tuple[int, float]], rate: int
) -> None:
    meter, now, used = Meter(rate=float(rate)), 0.0, 0
    for amount, pause in uses:
        used += amount
        rest = meter.fill(amount, now)
        now += rest + pause
        assert used <= rate * (now + WINDOW_S) + 1e-6 * used
        assert rest == 0 or used >= rate * WINDOW_S


# -- responses ------------------------------------------------------------------------------------------------


def answers() -> list[tuple[int, int, Any]]:
    responses = producer.ProduceResponse.TopicProduceResponse
    produced = responses(
        name="t",
        partition_responses=[
            responses.PartitionProduceResponse(
                index=0, error_code=0, base_offset=1, log_append_time_ms=-1, log_start_offset=0,
                record_errors=[], error_message=None,
            )
        ],
    )  # fmt: skip
    messages = {
        PRODUCE: producer.ProduceResponse(responses=[produced]),
        FETCH: consumer.FetchResponse(responses=[]),
        SHARE_FETCH: wire.ShareFetchResponse(responses=[], node_endpoints=[], acquisition_lock_timeout_ms=0),
    }
    low = {PRODUCE: 3}
    return [
        (key, version, message)
        for key, message in messages.items()
        for version in range(low.get(key, APIS[key].version_min), APIS[key].version_max + 1)
    ]


@pytest.mark.parametrize(("key", "version", "message"), answers())
@pytest.mark.parametrize("cut", [0, 8, 9])
def test_the_throttle_time_is_set_in_an_encoded_response(key: int, version: int, message: Any, cut: int) -> None:
    flexible = is_flexible(key, version)
    body = bytes(message.encode(version=version))
    head = response_header(7, flexible=flexible)
    frame = LENGTH.pack(len(head) + len(body)) + head + body
    cut = min(cut, LENGTH.size + len(head))
    parts = [frame[:cut], frame[cut:]]
    write_throttle_time(parts, key, version, flexible=flexible, ms=1234)
    changed = memoryview(bytearray(b"".join(parts)))[LENGTH.size :]
    decoded = APIS[key].response.decode(changed[skip_tags(changed, 4) if flexible else 4 :], version=version)
    assert decoded.throttle_time_ms == 1234
    assert len(changed) + LENGTH.size == len(frame)


# -- over TCP -------------------------------------------------------------------------------------------------


def described(client: Client, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    shape = admin.DescribeClientQuotasRequest
    asked = [shape.ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
    response = client.call(shape(components=asked, strict=strict))
    if response.error_code:
        return response.error_code
    return {tuple((part.entity_type, part.entity_name) for part in entry.entity) for entry in response.entries}


def test_quotas_survive_a_restart(tmp_path: Path) -> None:
    everybody = [Entity(USER, CLIENT), Entity(USER, DEFAULT), Entity(DEFAULT), Entity(None, CLIENT)]
    with Broker(tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        for n, entity in enumerate(everybody):
            alter_quotas(client, entity, {"producer_byte_rate": 100.0 + n, "request_percentage": 12.5})
        alter_quotas(client, everybody[3], {"producer_byte_rate": None, "consumer_byte_rate": 9.0})
        alter_quotas(client, everybody[2], {"producer_byte_rate": None, "request_percentage": None})
    with Broker(tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        assert list_quotas(client) == {
            everybody[0]: {"producer_byte_rate": 100.0, "request_percentage": 12.5},
            everybody[1]: {"producer_byte_rate": 101.0, "request_percentage": 12.5},
            everybody[3]: {"consumer_byte_rate": 9.0, "request_percentage": 12.5},
        }
        loader, any_client = ("client-id", CLIENT), ("client-id", None)
        both, default = (("user", USER), loader), (("user", USER), any_client)
        assert described(client, ("user", 0, USER)) == {both, default}
        assert described(client, ("client-id", 0, CLIENT)) == {(loader,), both}
        assert described(client, ("client-id", 0, CLIENT), strict=True) == {(loader,)}
        assert described(client, ("client-id", 1, None)) == {default}
        assert described(client, ("user", 2, None), ("client-id", 0, CLIENT)) == {both}
        assert described(client, ("ip", 2, None)) == set()
        assert described(client, ("planet", 2, None)) == 35
        assert described(client, ("user", 2, None), ("user", 2, None)) == 42
        assert described(client, ("user", 0, None)) == 42


@pytest.mark.parametrize(
    ("entity", "key", "value", "words"),
    [
        (Entity(None, CLIENT), "producer_byte_rate", 0.0, "greater than 0"),
        (Entity(None, CLIENT), "producer_byte_rate", 1.5, "whole number"),
        (Entity(None, CLIENT), "controller_mutation_rate", 1.0, "not enforced by this broker"),
        (Entity(), "producer_byte_rate", 1.0, "no entity given for the quota"),
    ],
)
def test_a_quota_that_is_not_enforced_is_rejected(
    broker: Broker, entity: Entity, key: str, value: float, words: str
) -> None:
    with Client(broker.bootstrap_servers) as client:
        with pytest.raises(InvalidError, match=words):
            alter_quotas(client, entity, {key: value})
        assert list_quotas(client) == {}


def test_validate_only_changes_nothing(broker: Broker) -> None:
    shape = admin.AlterClientQuotasRequest
    entry = shape.EntryData(
        entity=[shape.EntryData.EntityData(entity_type="ip", entity_name="127.0.0.1")],
        ops=[shape.EntryData.OpData(key="connection_creation_rate", value=1.0, remove=False)],
    )
    fine = shape.EntryData(
        entity=[shape.EntryData.EntityData(entity_type="user", entity_name="ann")],
        ops=[shape.EntryData.OpData(key="producer_byte_rate", value=1.0, remove=False)],
    )
    with Client(broker.bootstrap_servers) as client:
        found = client.call(shape(entries=[entry, fine], validate_only=True)).entries
        assert [each.error_code for each in found] == [35, 0]
        assert list_quotas(client) == {}


def metric(broker: Broker, name: str) -> float:
    line = next(line for line in broker.metrics().splitlines() if line.startswith(f"{name} "))
    return float(line.rpartition(" ")[2])


def test_a_producer_above_its_quota_is_throttled_and_not_read_from(broker: Broker) -> None:
    batch = encode_batch([Record(value=b"x" * 11_000)])
    with Client(broker.bootstrap_servers) as setter, Client(broker.bootstrap_servers, client_id=CLIENT) as client:
        setter.create_topic("orders")
        alter_quotas(setter, Entity(None, CLIENT), {"producer_byte_rate": 1000.0})
        shape = producer.ProduceRequest
        topic = shape.TopicProduceData(
            name="orders", partition_data=[shape.TopicProduceData.PartitionProduceData(index=0, records=batch)]
        )
        request = shape(transactional_id=None, acks=-1, timeout_ms=1000, topic_data=[topic])
        node = client.topics(["orders"])["orders"].leaders[0]
        answer = client.call(request, node=node)
        asked = time.monotonic()
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert 1000 <= answer.throttle_time_ms <= 1200  # a little more than 11,000 bytes, of which 10,000 are free
        assert metric(broker, "headwater_quota_resting_connections") == 1
        assert setter.offsets([ORDERS], EARLIEST) == {ORDERS: 0}  # other clients are not throttled
        client.offsets([ORDERS], EARLIEST)
        assert time.monotonic() - asked > 0.9 * answer.throttle_time_ms / 1000
        assert metric(broker, "headwater_quota_resting_connections") == 0
        label = f'{{quota="producer_byte_rate",user="",client_id="{CLIENT}"}}'
        assert metric(broker, f"headwater_quota_throttled_total{label}") == 1
        assert metric(broker, f"headwater_quota_throttled_seconds_total{label}") >= 1


def test_a_fetch_is_limited_to_its_window_and_then_throttled(broker: Broker) -> None:
    with Client(broker.bootstrap_servers) as setter, Client(broker.bootstrap_servers, client_id=CLIENT) as client:
        setter.create_topic("orders")
        for _ in range(30):
            setter.produce(ORDERS, encode_batch([Record(value=b"x" * 1000)]))
        alter_quotas(setter, Entity(USER), {"consumer_byte_rate": 1000.0})
        shape = consumer.FetchRequest
        asked = shape.FetchTopic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = shape(
            max_wait_ms=0, min_bytes=1 << 20, max_bytes=1 << 20, isolation_level=0, session_id=0, session_epoch=-1,
            topics=[shape.FetchTopic(topic="orders", partitions=[asked])], forgotten_topics_data=[],
        )  # fmt: skip
        node = client.topics(["orders"])["orders"].leaders[0]
        first = client.call(request, node=node)
        assert 5000 < len(first.responses[0].partitions[0].records) <= 10_000
        assert first.throttle_time_ms == 0
        second = client.call(request, node=node)
        assert len(second.responses[0].partitions[0].records) > 5000  # data that was already read is returned
        assert second.throttle_time_ms > 1000


def test_a_throttled_client_that_disconnects_is_removed(broker: Broker) -> None:
    with Client(broker.bootstrap_servers) as setter:
        setter.create_topic("orders")
        alter_quotas(setter, Entity(None, CLIENT), {"producer_byte_rate": 1000.0, "request_percentage": 1.0})
        with Client(broker.bootstrap_servers, client_id=CLIENT) as client:
            client.produce(ORDERS, encode_batch([Record(value=b"x" * 10_500)]))
            assert metric(broker, "headwater_quota_resting_connections") == 1
        while metric(broker, "headwater_quota_resting_connections"):
            time.sleep(0.01)


def test_time_spent_on_requests_is_limited(broker: Broker) -> None:
    """Any request uses up 0.001 percent of a thread."""
    with Client(broker.bootstrap_servers) as setter, Client(broker.bootstrap_servers, client_id=CLIENT) as client:
        setter.create_topic("orders")
        alter_quotas(setter, Entity(None, CLIENT), {"request_percentage": 0.001})
        client.produce(ORDERS, encode_batch([Record(value=b"x")]))
        client.offsets([ORDERS], EARLIEST)
        assert metric(broker, "headwater_quota_resting_connections") == 1
