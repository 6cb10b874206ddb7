"""Parse windows, triggers and aggregates from text: `AfterWatermark(early=AfterCount(2))`.

Beam's names are accepted as well as ours. A number in place of a duration is in seconds. Nothing is evaluated: a
text is a tree of names that are known here.
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headwater.errors import InvalidError
from headwater.process.aggregates import aggregates
from headwater.process.windows import triggers, windows
from headwater.process.windows.windowing import Mode, Stamp

_CUSTOM_SHIFT = 100_000_000
"""Beam's own test window moves the times of panes by 100 seconds."""


@dataclass(frozen=True, slots=True)
class WindowNotation:
    """A window as a transcript names it, and the shift of its panes' times if the stamp is `TRANSFORMED`."""

    where: windows.Window
    shift: int = 0


def _duration(value: Any) -> str:
    return value if isinstance(value, str) else f"{value} seconds"


def _optional(value: Any) -> str | None:
    return _duration(value) if value else None


def _tumbling(size: Any, offset: Any = 0, by: windows.Time = windows.Time.EVENT) -> WindowNotation:
    return WindowNotation(windows.Tumbling(_duration(size), _optional(offset), by))


def _hopping(size: Any, period: Any, offset: Any = 0, by: windows.Time = windows.Time.EVENT) -> WindowNotation:
    return WindowNotation(windows.Hopping(_duration(size), _duration(period), _optional(offset), by))


def _session(gap: Any, by: windows.Time = windows.Time.EVENT) -> WindowNotation:
    return WindowNotation(windows.Session(_duration(gap), by))


def _sliding(duration: Any, by: windows.Time = windows.Time.EVENT) -> WindowNotation:
    return WindowNotation(windows.Sliding(_duration(duration), by))


def _global(by: windows.Time = windows.Time.EVENT) -> WindowNotation:
    return WindowNotation(windows.Global(by))


def _after_processing_time(delay: Any = None, aligned_to: Any = None) -> triggers.Trigger:
    return triggers.AfterProcessingTime(_optional(delay), _optional(aligned_to))


_TIMES = {"EVENT_TIME": windows.EVENT_TIME, "PROCESSING_TIME": windows.PROCESSING_TIME}

_WINDOWS: Mapping[str, Any] = {
    "Tumbling": _tumbling,
    "Hopping": _hopping,
    "Sliding": _sliding,
    "Session": _session,
    "Global": _global,
    "FixedWindows": _tumbling,
    "SlidingWindows": _hopping,
    "Sessions": _session,
    "GlobalWindows": _global,
    "CustomTimestampingFixedWindowsWindowFn": lambda size: WindowNotation(_tumbling(size).where, _CUSTOM_SHIFT),
    **_TIMES,
}

_TRIGGERS: Mapping[str, Any] = {
    "Default": triggers.Default,
    "DefaultTrigger": triggers.Default,
    "AfterWatermark": triggers.AfterWatermark,
    "AfterCount": triggers.AfterCount,
    "AfterProcessingTime": _after_processing_time,
    "EveryBatch": triggers.EveryBatch,
    "Always": triggers.EveryBatch,
    "PerRecord": triggers.PerRecord,
    "Repeatedly": triggers.Repeatedly,
    "AfterAny": triggers.AfterAny,
    "AfterAll": triggers.AfterAll,
    "AfterEach": triggers.AfterEach,
    "OrFinally": triggers.OrFinally,
}

_AGGREGATES: Mapping[str, Any] = {
    function.value: getattr(aggregates, function.value) for function in aggregates.Function
}


def read_window(text: str) -> WindowNotation:
    """Parse a window, such as `FixedWindows(10)` or `Session("30 minutes")`."""
    window = _read("window", text, _WINDOWS)
    if not isinstance(window, WindowNotation):
        raise InvalidError(f"cannot read the window {text!r}: use one of {_names(_WINDOWS)}")
    return window


def read_trigger(text: str) -> triggers.Trigger:
    """Parse a trigger, such as `AfterWatermark(late=AfterCount(1))`."""
    trigger: triggers.Trigger = _read("trigger", text, _TRIGGERS)
    return trigger


def read_aggregate(text: str) -> aggregates.Aggregate:
    """Parse an aggregate, such as `sum(amount)` or `quantile(amount, 0.99)`; column names need no quotes."""
    aggregate: aggregates.Aggregate = _read("aggregate", text, _AGGREGATES, bare_names=True)
    return aggregate


def read_mode(text: str) -> Mode:
    """Parse `discarding`, `accumulating` or `retracting`, in upper or lower case."""
    try:
        return Mode(text.lower())
    except ValueError:
        raise InvalidError(f"cannot read the mode {text!r}: use one of {', '.join(Mode)}") from None


def read_stamp(text: str) -> tuple[Stamp, bool]:
    """Parse `end`, `earliest`, `latest` or Beam's names, such as `OUTPUT_AT_EOW`; True if it is `TRANSFORMED`."""
    name = text.upper().removeprefix("OUTPUT_AT_")
    is_transformed = name.endswith("_TRANSFORMED")
    name = name.removesuffix("_TRANSFORMED")
    try:
        return Stamp("end" if name == "EOW" else name.lower()), is_transformed
    except ValueError:
        raise InvalidError(f"cannot read the stamp {text!r}: use one of {', '.join(Stamp)}") from None


def _names(known: Mapping[str, Any]) -> str:
    return ", ".join(known)


def _read(what: str, text: str, known: Mapping[str, Any], bare_names: bool = False) -> Any:
    try:
        tree = ast.parse(str(text).strip(), mode="eval").body
    except SyntaxError:
        raise InvalidError(f"cannot read the {what} {text!r}: write it as `Name(argument, ...)`") from None

    def value(node: ast.expr, is_root: bool = False) -> Any:
        match node:
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
                return _call(name, [value(a) for a in args], {str(k.arg): value(k.value) for k in keywords})
            case ast.Name(id=name) if bare_names and not is_root:
                return name
            case ast.Name(id=name):
                found = lookup(name)
                return found() if callable(found) else found
            case ast.Constant(value=constant):
                return constant
        raise InvalidError(f"cannot read the {what} {text!r}: `{ast.unparse(node)}` is neither a name nor a value")

    def lookup(name: str) -> Any:
        if name not in known:
            raise InvalidError(
                f"cannot read the {what} {text!r}: {name!r} is unknown; the names are {_names(known)}"
            )
        return known[name]

    def _call(name: str, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        function: Callable[..., Any] = lookup(name)
        try:
            return function(*arguments, **keywords)
        except TypeError as error:
            raise InvalidError(f"cannot read the {what} {text!r}: {error}") from None

    return value(tree, is_root=True)
