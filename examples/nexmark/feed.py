"""Send events to the topics of the app: python feed.py [EVENTS] [SERVERS]"""

import io
import sys

from confluent_kafka import Producer
from events import SCHEMAS, stretches


def feed(servers: str, count: int, *, seed: int = 0) -> None:
    """Send events as JSON, and wait until all are acknowledged."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "compression.type": "lz4"})
    for events in stretches(count, seed=seed):
        for kind in SCHEMAS:
            lines = io.BytesIO()
            getattr(events, kind).write_ndjson(lines)
            for line in lines.getvalue().splitlines():
                while True:
                    try:
                        producer.produce(kind, line)
                        break
                    except BufferError:
                        producer.poll(1)
        if producer.flush(60):
            raise TimeoutError(f"the log at {servers} does not take the events")


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    feed(sys.argv[2] if len(sys.argv) > 2 else "localhost:9092", count)
