"""Requests of the members of classic groups: join, sync, heartbeat, leave."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from kafka.protocol.consumer import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)

from headwater.transmit.broker.error_codes import CLASSIC_GROUP_CODES
from headwater.transmit.broker.node import Node
from headwater.transmit.broker.request import RequestContext
from headwater.transmit.groups.classic_rounds import JoinReply, JoinRequest, SyncReply
from headwater.transmit.wire.codes import Code

_MEMBER_ID_REQUIRED_FROM = 4
_MANY_MEMBERS_FROM = 3

Reply = TypeVar("Reply", JoinReply, SyncReply)


async def join_group(node: Node, request: Any, context: RequestContext) -> Any:
    """Add a member; the response follows when the rebalance that it joined is complete."""
    if not request.group_id:
        return _joined(JoinReply(member_id=request.member_id), context, Code.INVALID_GROUP_ID)
    if request.session_timeout_ms <= 0:
        return _joined(JoinReply(member_id=request.member_id), context, Code.INVALID_SESSION_TIMEOUT)
    if not node.group_kinds.become_classic(request.group_id):
        return _joined(JoinReply(member_id=request.member_id), context, Code.INCONSISTENT_GROUP_PROTOCOL)
    # Before version 1, the session timeout was used for both.
    rebalance_ms = request.rebalance_timeout_ms if context.version >= 1 else request.session_timeout_ms
    member = JoinRequest(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=context.client_id,
        client_host=context.host,
        session_timeout_s=request.session_timeout_ms / 1000,
        rebalance_timeout_s=max(rebalance_ms, 0) / 1000,
        protocol_type=request.protocol_type,
        protocols=tuple((p.name, bytes(p.metadata)) for p in request.protocols),
        knows_member_id_required=context.version >= _MEMBER_ID_REQUIRED_FROM,
    )
    future: asyncio.Future[JoinReply] = asyncio.get_running_loop().create_future()
    node.classic_groups.join(request.group_id, member, _resolver(future), node.clock.monotonic())
    reply = await future
    return _joined(reply, context, CLASSIC_GROUP_CODES[reply.error])


def _resolver(future: asyncio.Future[Reply]) -> Callable[[Reply], None]:
    """Return a function that sets the result of a future, unless the client has disconnected."""

    def set_result(reply: Reply) -> None:
        if not future.done():
            future.set_result(reply)

    return set_result


def _joined(reply: JoinReply, context: RequestContext, code: Code) -> Any:
    return JoinGroupResponse(
        error_code=code,
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        # Up to version 6 the name may not be null.
        protocol_name=reply.protocol if reply.protocol is not None or context.version > 6 else "",
        leader=reply.leader,
        skip_assignment=False,
        member_id=reply.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=member_id, group_instance_id=instance_id, metadata=metadata
            )
            for member_id, instance_id, metadata in reply.members
        ],
    )


async def sync_group(node: Node, request: Any, context: RequestContext) -> Any:
    """Return the member's assignment; the response follows when the leader has sent the assignments."""
    future: asyncio.Future[SyncReply] = asyncio.get_running_loop().create_future()
    node.classic_groups.sync(
        request.group_id,
        request.member_id,
        request.generation_id,
        {a.member_id: bytes(a.assignment) for a in request.assignments},
        _resolver(future),
        node.clock.monotonic(),
        request.group_instance_id,
    )
    reply = await future
    return SyncGroupResponse(
        error_code=CLASSIC_GROUP_CODES[reply.error],
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol,
        assignment=reply.assignment,
    )


def heartbeat(node: Node, request: Any, context: RequestContext) -> Any:
    error = node.classic_groups.heartbeat(
        request.group_id,
        request.member_id,
        request.generation_id,
        node.clock.monotonic(),
        request.group_instance_id,
    )
    return HeartbeatResponse(error_code=CLASSIC_GROUP_CODES[error])


def leave_group(node: Node, request: Any, context: RequestContext) -> Any:
    """Remove one member (old versions) or several."""
    now = node.clock.monotonic()
    if context.version < _MANY_MEMBERS_FROM:
        error = node.classic_groups.leave(request.group_id, request.member_id, None, now)
        return LeaveGroupResponse(error_code=CLASSIC_GROUP_CODES[error])
    return LeaveGroupResponse(
        error_code=Code.NONE,
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=m.member_id,
                group_instance_id=m.group_instance_id,
                error_code=CLASSIC_GROUP_CODES[
                    node.classic_groups.leave(request.group_id, m.member_id, m.group_instance_id, now)
                ],
            )
            for m in request.members
        ],
    )
