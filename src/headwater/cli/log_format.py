"""The format of log messages on stderr: text for people, or JSON for log collectors."""

import json
import logging
from datetime import UTC, datetime

from headwater.errors import InvalidError

TEXT = "%(asctime)s %(levelname)s %(message)s"


class JsonLines(logging.Formatter):
    """Formats each message as a JSON object with time, level, logger, message and traceback, if any."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def set_up_logging(log_format: str) -> None:
    """Write log messages to stderr; `log_format` is text or json."""
    formatters = {"text": logging.Formatter(TEXT), "json": JsonLines()}
    if log_format not in formatters:
        raise InvalidError(f"cannot read --log-format {log_format!r}: expected {', '.join(formatters)}")
    handler = logging.StreamHandler()
    handler.setFormatter(formatters[log_format])
    logging.basicConfig(handlers=[handler], level=logging.INFO)
