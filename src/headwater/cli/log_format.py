"""How the program's log is written: for people, or as JSON for those who collect logs."""

import json
import logging
from datetime import UTC, datetime

from headwater.errors import InvalidError

TEXT = "%(asctime)s %(levelname)s %(message)s"


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the traceback where there is one."""

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
    """Write the log to stderr; `log_format` is text or json."""
    formatters = {"text": logging.Formatter(TEXT), "json": JsonLines()}
    if log_format not in formatters:
        raise InvalidError(f"cannot read --log-format {log_format!r}: expected {', '.join(formatters)}")
    handler = logging.StreamHandler()
    handler.setFormatter(formatters[log_format])
    logging.basicConfig(handlers=[handler], level=logging.INFO)
