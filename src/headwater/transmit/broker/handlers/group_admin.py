"""List and delete groups of every kind; describe classic groups."""

from typing import Any

from kafka.protocol.admin import DeleteGroupsResponse, DescribeGroupsResponse, ListGroupsResponse

from headwater.transmit.broker.error_codes import CLASSIC_GROUP_CODES
from headwater.transmit.broker.node import Node
from headwater.transmit.broker.permissions import ON_GROUP, as_set
from headwater.transmit.broker.request import RequestContext
from headwater.transmit.groups.classic_rounds import ClassicGroup, GroupError, GroupState
from headwater.transmit.groups.consumer import ConsumerGroup
from headwater.transmit.groups.store import GroupKind
from headwater.transmit.wire.codes import Code

_NOT_FOUND_FROM = 6
_CONSUMER = "consumer"


def list_groups(node: Node, request: Any, context: RequestContext) -> Any:
    """List the groups that have members or committed offsets."""
    states = [state.lower() for state in request.states_filter or []]
    types = [kind.lower() for kind in request.types_filter or []]
    return ListGroupsResponse(
        error_code=Code.NONE,
        groups=[
            ListGroupsResponse.ListedGroup(
                group_id=name, protocol_type=protocol_type, group_state=state, group_type=kind.value
            )
            for name, kind, state, protocol_type in _all_groups(node)
            if (not states or state.lower() in states) and (not types or kind.value in types)
        ],
    )


def _all_groups(node: Node) -> list[tuple[str, GroupKind, str, str]]:
    """Return the name, kind, state and protocol type of every group."""
    kinds = node.group_store.kinds()
    found: list[tuple[str, GroupKind, str, str]] = []
    for name, kind in kinds.items():
        if kind is GroupKind.SHARE:
            share = node.share_groups.group(name)
            found.append((name, kind, share.state if share else "Empty", "share"))
        else:
            group = node.consumer_groups.get(name) or ConsumerGroup(id=name)
            found.append((name, kind, group.state, _CONSUMER))
    classic = {group.id: group for group in node.classic_groups.all()}
    for name in node.catalog.groups():
        classic.setdefault(name, ClassicGroup(id=name, protocol_type=_CONSUMER))
    found += [
        (group.id, GroupKind.CLASSIC, group.state.value, group.protocol_type or "")
        for group in classic.values()
        if group.id not in kinds
    ]
    return found


def describe_groups(node: Node, request: Any, context: RequestContext) -> Any:
    groups = [_described(node, name, context) for name in request.groups]
    for group in groups:
        group.authorized_operations = as_set(ON_GROUP, requested=request.include_authorized_operations)
    return DescribeGroupsResponse(groups=groups)


def _described(node: Node, name: str, context: RequestContext) -> Any:
    shape = DescribeGroupsResponse.DescribedGroup
    group = node.classic_groups.get(name)
    if name in node.group_store.kinds():
        group = None  # it uses another protocol, which has its own describe request
    elif group is None and name in node.catalog.groups():
        group = ClassicGroup(id=name, protocol_type=_CONSUMER)
    if group is None:
        # Older versions do not have this error; for them the state is Dead.
        code = Code.GROUP_ID_NOT_FOUND if context.version >= _NOT_FOUND_FROM else Code.NONE
        return shape(
            error_code=code,
            error_message=f"there is no group {name!r}",
            group_id=name,
            group_state=GroupState.DEAD.value,
            protocol_type="",
            protocol_data="",
            members=[],
        )
    return shape(
        error_code=Code.NONE,
        error_message=None,
        group_id=name,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=group.protocol or "",
        members=[
            shape.DescribedGroupMember(
                member_id=member.id,
                group_instance_id=member.request.instance_id,
                client_id=member.request.client_id,
                client_host=member.request.client_host,
                member_metadata=member.metadata(group.protocol),
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )


def delete_groups(node: Node, request: Any, context: RequestContext) -> Any:
    # Members whose session has expired must not prevent the deletion.
    node.classic_groups.expire(node.clock.monotonic())
    return DeleteGroupsResponse(
        results=[
            DeleteGroupsResponse.DeletableGroupResult(
                group_id=name, error_code=CLASSIC_GROUP_CODES[_delete(node, name)]
            )
            for name in request.groups_names
        ]
    )


def _delete(node: Node, name: str) -> GroupError:
    kind = node.group_store.kinds().get(name)
    if kind is not None:
        group = node.share_groups.group(name) if kind is GroupKind.SHARE else node.consumer_groups.get(name)
        if group is not None and group.members:
            return GroupError.NON_EMPTY
        node.share_groups.delete(name)
        node.consumer_groups.delete(name)
    elif node.classic_groups.get(name) is None and name not in node.catalog.groups():
        return GroupError.NOT_FOUND
    error = node.classic_groups.delete(name)
    if error is GroupError.NONE:
        node.catalog.delete_group(name)
    return error
