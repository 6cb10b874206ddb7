"""The client's connections to brokers: requests encoded, versions negotiated, responses decoded."""

from typing import Any

from kafka.protocol.consumer import FetchRequest, OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
)

from headwater.errors import UnavailableError
from headwater.transmit.transport import Address, BlockingTransport, Connect
from headwater.transmit.wire.apis import APIS
from headwater.transmit.wire.frame import LENGTH, skip_tags

# In higher versions, requests name topics by id only, or belong to version 2 of the transaction protocol, or are
# for use between brokers. The client uses topic names and version 1 of the transaction protocol.
_VERSION_CAPS = {
    FetchRequest.API_KEY: 12,
    ProduceRequest.API_KEY: 9,
    MetadataRequest.API_KEY: 12,
    OffsetCommitRequest.API_KEY: 9,
    OffsetFetchRequest.API_KEY: 9,
    AddPartitionsToTxnRequest.API_KEY: 3,
    InitProducerIdRequest.API_KEY: 5,
    EndTxnRequest.API_KEY: 4,
}


class ClientConnection:
    """Sends requests in versions that the broker supports, and receives the responses in order."""

    def __init__(self, transport: BlockingTransport, client_id: str) -> None:
        self._client_id = client_id
        self._correlation_id = 0
        self._transport = transport
        self._versions = {ApiVersionsRequest.API_KEY: (0, 0)}
        try:
            response = self.call(ApiVersionsRequest())
        except BaseException:
            transport.close()
            raise
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}

    def call(self, request: Any) -> Any:
        return self.receive(*self.send(request))

    def send(self, request: Any) -> tuple[Any, int, int]:
        """Send a request, and return the arguments for `receive`."""
        version = self._version(request)
        self._correlation_id += 1
        request.API_VERSION = version
        request.with_header(correlation_id=self._correlation_id, client_id=self._client_id)
        self._transport.sendall(request.encode(version=version, header=True, framed=True))
        return APIS[request.API_KEY].response, version, self._correlation_id

    def fileno(self) -> int:
        return self._transport.fileno()

    def close(self) -> None:
        self._transport.close()

    def _version(self, request: Any) -> int:
        key = request.API_KEY
        low, high = self._versions.get(key, (0, -1))
        version = min(high, request.max_version, _VERSION_CAPS.get(key, high))
        if version < low:
            raise UnavailableError(
                f"cannot send {request.name}: the broker supports only versions {low} to {high} of it"
            )
        return int(version)

    def receive(self, response: Any, version: int, expected: int) -> Any:
        """Receive the next response, which has to be the one with the expected correlation id."""
        (size,) = LENGTH.unpack(self._exactly(LENGTH.size))
        frame = memoryview(self._exactly(size))
        (correlation_id,) = LENGTH.unpack_from(frame)
        if correlation_id != expected:
            raise OSError(f"expected the response to request {expected}, received the one to {correlation_id}")
        at = LENGTH.size
        if response.flexible_version_q(version) and response.API_KEY != ApiVersionsRequest.API_KEY:
            at = skip_tags(frame, at)
        return response.decode(frame[at:], version=version)

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            received = self._transport.recv_into(view)
            if not received:
                raise ConnectionResetError("the broker closed the connection")
            view = view[received:]
        return data


class ConnectionPool:
    """One connection to each address, opened on first use."""

    def __init__(self, client_id: str, connect: Connect, timeout_s: float) -> None:
        self._client_id = client_id
        self._connect = connect
        self._timeout_s = timeout_s
        self._connections: dict[Address, ClientConnection] = {}

    def get(self, address: Address) -> ClientConnection:
        connection = self._connections.get(address)
        if connection is None:
            transport = self._connect(address, self._timeout_s)
            connection = self._connections[address] = ClientConnection(transport, self._client_id)
        return connection

    def drop(self, address: Address) -> None:
        """Close the connection to an address; the next request opens a new one."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        for address in list(self._connections):
            self.drop(address)
