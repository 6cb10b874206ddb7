"""The OpenAPI 3.1 description of the API, written by hand; a test checks that it has every route."""

from typing import Any

Json = dict[str, Any]

_TEXT = {"type": "string"}
_STATES = ["starting", "running", "waiting", "isolating", "paused", "suspended", "stopped", "removed"]
_COUNT = {"type": "integer", "minimum": 0}
_MAYBE_COUNT = {"type": ["integer", "null"]}
_MAYBE_NUMBER = {"type": ["number", "null"]}
_MAYBE_ROW = {"type": ["object", "null"], "additionalProperties": True}


def document(app: str) -> Json:
    """Return the description that is served at `/api/v1/openapi.json`."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"Headwater: {app}",
            "version": "1",
            "description": "Read the results of an app.",
        },
        "paths": {f"/api/v1{path}": {"get": operation} for path, operation in _operations().items()},
        "components": {"schemas": _schemas()},
    }


def _operations() -> dict[str, Json]:
    return {
        "/openapi.json": _get("This document", _json({"type": "object"})),
        "/status": _get("The whole status of the app: topics, groups, pipelines and views", _json(_ref("Status"))),
        "/status/stream": _get("The status, once a second, as `status` events", _events()),
        "/topics": _get("The topics and their rates", _json(_object(topics=_list(_ref("Topic"))))),
        "/groups": _get(
            "The consumer groups with their lag, and the records that retention will delete before they read them",
            _json(_object(groups=_list(_ref("Group")))),
        ),
        "/pipelines": _get(
            "The pipelines and their last batches", _json(_object(pipelines=_list(_ref("Pipeline"))))
        ),
        "/pipelines/{pipeline}/facts": _get(
            "The last batches of a pipeline with the offsets they read; or the state of its stateful operators",
            _json(_object(pipeline=_TEXT, kind=_TEXT, facts=_list({"type": "object"}))),
            _parameter("pipeline", "path", _TEXT, "the pipeline's name"),
            _parameter("kind", "query", {"enum": ["batch", "operators"], "default": "batch"}),
            _parameter("limit", "query", {"type": "integer", "minimum": 1, "maximum": 300, "default": 300}),
        ),
        "/views": _get("The views and their shapes", _json(_object(views=_list(_ref("View"))))),
        **_view_operations(),
    }


def _view_operations() -> dict[str, Json]:
    view = _parameter("view", "path", _TEXT, "the view's name")
    as_of = _parameter("as_of", "query", _TEXT, "a position or a token: return the rows as of it")
    page, fresh = _page_parameters(), _fresh_parameters()
    prefix = _parameter(
        "key", "query", _list(_TEXT), "the first values of the key, in order; repeat it for each value"
    )
    segments = _parameter("key", "path", _TEXT, "the first values of the key, one path segment each, encoded")
    return {
        "/views/{view}/rows": _get("Rows of a view", _json(_ref("Rows")), view, prefix, *page, as_of, *fresh),
        "/views/{view}/rows/{key}": _get(
            "Rows whose key starts with the given values",
            _json(_ref("Rows")),
            view,
            segments,
            *page,
            as_of,
            *fresh,
        ),
        "/views/{view}/search": _get(
            "Rows that match a full-text search in the view's `search` columns, best match first",
            _json(_ref("Rows")),
            view,
            _parameter(
                "q",
                "query",
                _TEXT,
                '`green tea` matches both words, `"green tea"` the phrase, `gree*` a prefix, `tea OR coffee` '
                "either word; `-decaf` excludes a word",
            ),
            prefix,
            *page,
            *fresh,
        ),
        "/views/{view}/subscribe": _get(
            "The rows as `row` events between `reset` and `ready`, then every change as a `change` event; `reset` "
            "comes again if the view was rebuilt or the changes since the token are no longer kept",
            _events(),
            view,
            _parameter("token", "query", _TEXT, "the `id` of the last event received: send only later changes"),
            _parameter(
                "Last-Event-ID", "header", _TEXT, "overrides `token`; browsers send it when they reconnect"
            ),
        ),
        "/views/{view}/late": _get(
            "The rows that arrived after their window had closed",
            _json(_object(view=_TEXT, rows=_list(_ref("LateRow")))),
            view,
            _parameter("after", "query", _COUNT, "the number of the last row received"),
            page[0],
        ),
    }


def _page_parameters() -> list[Json]:
    return [
        _parameter("limit", "query", {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 1000}),
        _parameter("order_by", "query", _TEXT, "columns, as in `-revenue,product`; defaults to the key"),
        _parameter("descending", "query", {"type": "boolean", "default": False}, "reverse the order"),
        _parameter(
            "where",
            "query",
            _list(_TEXT),
            "a condition, as in `amount >= 10`; operators are `=` `!=` `<` `<=` `>` `>=`, `^=` (starts with) and "
            "`in` with a list; `null` means no value; repeat the parameter for each condition",
        ),
        _parameter("after", "query", _TEXT, "the `next` of the previous response: return the rows after it"),
    ]


def _fresh_parameters() -> list[Json]:
    return [
        _parameter(
            "at_least",
            "query",
            _TEXT,
            "wait until the view has seen a position, a token, or `TOPIC:PARTITION:OFFSET`, or several of these",
        ),
        _parameter(
            "timeout",
            "query",
            {"type": "number", "minimum": 0, "maximum": 60, "default": 10},
            "maximum number of seconds to wait; after that the response is 503",
        ),
    ]


def _schemas() -> Json:
    return {**_log_schemas(), **_app_schemas()}


def _log_schemas() -> Json:
    offsets = _object(partition=_COUNT, startOffset=_COUNT, endOffset=_COUNT)
    position = _object(
        topic=_TEXT,
        partition=_COUNT,
        offset=_COUNT,
        endOffset=_COUNT,
        lagRecords=_COUNT,
        atRiskRecords=_MAYBE_COUNT,
    )
    rate = _object(atMs=_COUNT, recordsPerSecond={"type": "number"})
    return {
        "Topic": _object(
            name=_TEXT,
            partitions=_COUNT,
            records=_COUNT,
            recordsPerSecond=_MAYBE_NUMBER,
            partitionOffsets=_list(offsets),
            history=_list(rate),
            stale={"type": "boolean"},
        ),
        "Group": _object(
            name=_TEXT,
            type={"enum": ["classic", "consumer", "share"]},
            state=_TEXT,
            lagRecords=_COUNT,
            atRiskRecords=_COUNT,
            positions=_list(position),
        ),
    }


def _app_schemas() -> Json:
    batch = _object(atMs=_COUNT, batchId=_COUNT, numInputRows=_MAYBE_COUNT, durationMs=_MAYBE_COUNT)
    columns = _list(_object(name=_TEXT, type=_TEXT))
    return {
        "Status": _object(
            app=_TEXT,
            topics=_list(_ref("Topic")),
            groups=_list(_ref("Group")),
            pipelines=_list(_ref("Pipeline")),
            views=_list(_ref("View")),
        ),
        "Pipeline": _object(
            name=_TEXT,
            state={"enum": [*_STATES, None]},
            batchId=_MAYBE_COUNT,
            numInputRows=_MAYBE_COUNT,
            inputRowsPerSecond=_MAYBE_NUMBER,
            processedRowsPerSecond=_MAYBE_NUMBER,
            batchDurationMs=_MAYBE_COUNT,
            behindRecords=_MAYBE_COUNT,
            catchUpSeconds=_MAYBE_NUMBER,
            leftOutRecords=_MAYBE_COUNT,
            lateRows=_MAYBE_COUNT,
            ignoredRows=_MAYBE_COUNT,
            deadLetters=_MAYBE_COUNT,
            isolating={"anyOf": [_object(records=_COUNT, found=_COUNT), {"type": "null"}]},
            lastProgressMs=_MAYBE_COUNT,
            error={"type": ["string", "null"]},
            history=_list(batch),
        ),
        "View": _object(
            name=_TEXT,
            key=_list(_TEXT),
            columns=columns,
            rows=_COUNT,
            position=_COUNT,
            indexes=_list(_list(_TEXT)),
            search=_list(_TEXT),
            history=_COUNT,
            lateRows=_COUNT,
            lateRowsWaiting=_COUNT,
        ),
        "LateRow": _object(
            number=_COUNT,
            batchId=_COUNT,
            operator=_TEXT,
            key={"type": "object"},
            window=_object(start=_TEXT, end=_TEXT),
            eventTime=_TEXT,
            lateByMs={"type": "number"},
            reason={"enum": ["expired", "closed", "no event time"]},
            lastPane=_MAYBE_COUNT,
            row={"type": "object"},
            reprocessed={"type": "boolean"},
        ),
        "Rows": _object(
            view=_TEXT,
            columns=columns,
            rows=_list({"type": "object"}),
            position=_COUNT,
            token=_TEXT,
            next={"type": ["string", "null"]},
        ),
        "Change": _object(
            op={"enum": ["c", "u", "d"]}, key=_list({}), before=_MAYBE_ROW, after=_MAYBE_ROW, position=_COUNT
        ),
        "Error": _object(error=_object(message=_TEXT, hint={"type": ["string", "null"]})),
    }


def _get(summary: str, content: Json, *parameters: Json) -> Json:
    error = {"description": "The error", "content": _json(_ref("Error"))}
    return {
        "summary": summary,
        "parameters": list(parameters),
        "responses": {"200": {"description": summary, "content": content}, "4XX": error},
    }


def _parameter(name: str, place: str, schema: Json, description: str = "") -> Json:
    required = place == "path"
    return {"name": name, "in": place, "required": required, "schema": schema, "description": description}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _events() -> Json:
    return {"text/event-stream": {"schema": _TEXT}}


def _object(**properties: Json) -> Json:
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}
