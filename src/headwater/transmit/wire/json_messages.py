"""Messages of share groups and of the new consumer protocol, which kafka-python does not have.

Their fields are defined in `schemas/*.json`, one file for each message, in the format of kafka-python's loader.
"""

from kafka.protocol.api_message import ApiMessage

_PACKAGE = "headwater.transmit.wire.schemas"


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-848: keep a member in the group; its subscription and its current assignment."""


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-848: the epoch of the member, and its new assignment."""


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-848: describe groups."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-848: groups with their members and assignments."""


class ShareGroupHeartbeatRequest(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-932: keep a member in the share group; its subscription."""


class ShareGroupHeartbeatResponse(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-932: the epoch of the member, and the partitions to fetch from."""


class ShareGroupDescribeRequest(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-932: describe share groups."""


class ShareGroupDescribeResponse(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-932: share groups with their members."""


class ShareFetchRequest(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-932: acknowledge records and fetch more."""


class ShareFetchResponse(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-932: whole batches, and the offsets in them that the member has acquired."""


class ShareAcknowledgeRequest(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-932: acknowledge records without fetching."""


class ShareAcknowledgeResponse(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-932: the result for each partition."""


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """Request the start offsets of share groups."""


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """Start offsets and lag."""


class AlterShareGroupOffsetsRequest(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """Move the start of an empty share group."""


class AlterShareGroupOffsetsResponse(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """The result for each partition."""


class DeleteShareGroupOffsetsRequest(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """Delete the offsets of topics in an empty share group."""


class DeleteShareGroupOffsetsResponse(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """The result for each topic."""
