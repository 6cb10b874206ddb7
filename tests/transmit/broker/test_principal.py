"""The principal of a connection reaches the handlers and the quotas."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsRequest

from headwater.clock import SystemClock
from headwater.security.principal import ANONYMOUS, Principal
from headwater.transmit.broker import dispatch
from headwater.transmit.broker.connection import CHUNK_BYTES, Connection
from headwater.transmit.broker.node import BrokerSettings, Endpoint, Node, open_node
from headwater.transmit.broker.request import RequestContext
from headwater.transmit.quotas import Entity, QuotaKind
from headwater.transmit.transport import SocketTransport
from headwater.transmit.wire.apis import API_VERSIONS

ALICE = Principal("User", "alice")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = open_node(BrokerSettings(data=tmp_path), Endpoint(host="127.0.0.1", port=9092), SystemClock())
    yield node
    asyncio.run(node.topics.close())
    asyncio.run(node.share_groups.close())
    asyncio.run(node.transactions.close())
    node.catalog.close()


async def send_request(node: Node, principal: Principal | None) -> None:
    """Send one ApiVersions request over a connection, and wait for the response."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        connection = Connection(
            SocketTransport(ours, "127.0.0.1"), node, dispatch.respond, set(), memoryview(bytearray(CHUNK_BYTES))
        )
        if principal is not None:
            connection.principal = principal
        request = ApiVersionsRequest()
        request.with_header(correlation_id=1, client_id="loader")
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(theirs, request.encode(version=0, header=True, framed=True))
        assert await loop.sock_recv(theirs, 1 << 16)
        await connection.close()


def test_principal_is_written_as_in_kafka() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"


@pytest.mark.parametrize(("principal", "expected"), [(None, ANONYMOUS), (ALICE, ALICE)])
def test_principal_reaches_handler(
    node: Node, monkeypatch: pytest.MonkeyPatch, principal: Principal | None, expected: Principal
) -> None:
    contexts: list[RequestContext] = []
    handle = dispatch.HANDLERS[API_VERSIONS]

    def recording(node: Node, request: Any, context: RequestContext) -> Any:
        contexts.append(context)
        return handle(node, request, context)

    monkeypatch.setitem(dispatch.HANDLERS, API_VERSIONS, recording)
    asyncio.run(send_request(node, principal))
    assert [context.principal for context in contexts] == [expected]


@pytest.mark.parametrize(("principal", "user"), [(None, "ANONYMOUS"), (ALICE, "alice")])
def test_principal_selects_quota(node: Node, principal: Principal | None, user: str) -> None:
    node.quotas.change(Entity(user), {QuotaKind.REQUEST: 50.0})
    node.quotas.change(Entity("bob"), {QuotaKind.REQUEST: 50.0})
    asyncio.run(send_request(node, principal))
    assert [bucket.entity for bucket in node.quotas.meters] == [Entity(user)]
