"""Parse addresses in options: `127.0.0.1:9092`."""

from headwater.errors import InvalidError


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Return host and port; raise an InvalidError that names the option if the text is not an address."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InvalidError(f"cannot read {option} {text!r}: expected host:port, such as 127.0.0.1:9092")
    return host.strip("[]"), int(port)
