"""Addresses as options give them: `127.0.0.1:9092`."""

from headwater.errors import InvalidError


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Read host and port; an InvalidError names the option."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InvalidError(f"cannot read {option} {text!r}: expected host:port, such as 127.0.0.1:9092")
    return host.strip("[]"), int(port)
