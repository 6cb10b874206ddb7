"""Generate the orders of the demo's shop, with an ordinary Kafka client.

Some orders are a few seconds late, and one in a few hundred does not match the schema, so that the demo shows late
rows and dead letters, too.
"""

import json
import logging
import random
import threading
import uuid
from datetime import UTC, datetime, timedelta

from kafka import KafkaProducer

from headwater.clock import Clock

PRODUCTS = {"tea": 4.5, "coffee": 6.25, "cocoa": 5.0, "honey": 8.75, "biscuits": 3.0}
ORDERS_PER_SECOND = 40
LATE_SHARE, LATE_SECONDS_MAX = 0.05, 20
BROKEN_SHARE = 1 / 400
_FLUSH_S = 10


class Traffic:
    """A thread that produces orders until it is stopped."""

    def __init__(self, bootstrap_servers: str, clock: Clock, *, seed: int | None = None) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._clock = clock
        self._random = random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-traffic", daemon=True)
        self.sent = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the last order is acknowledged."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        logging.getLogger("kafka").setLevel(logging.ERROR)
        producer = KafkaProducer(bootstrap_servers=self._bootstrap_servers, linger_ms=20)
        while not self._stopping.wait(self._random.expovariate(ORDERS_PER_SECOND)):
            order = self._order()
            producer.send("orders", key=order[0], value=order[1])
            self.sent += 1
        producer.flush(timeout=_FLUSH_S)
        producer.close(timeout=_FLUSH_S)

    def _order(self) -> tuple[bytes, bytes]:
        order_id = str(uuid.UUID(int=self._random.getrandbits(128)))
        if self._random.random() < BROKEN_SHARE:
            return order_id.encode(), b'{"order_id": "' + order_id.encode() + b'", "amount": "a lot"}'
        product = self._random.choices(list(PRODUCTS), weights=(5, 4, 2, 1, 3))[0]
        late = self._random.random() < LATE_SHARE
        delay = timedelta(seconds=self._random.uniform(0, LATE_SECONDS_MAX) if late else 0)
        placed_at = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC) - delay
        order = {
            "order_id": order_id,
            "product": product,
            "amount": PRODUCTS[product] * self._random.randint(1, 4),
            "placed_at": placed_at.isoformat(),
        }
        return order_id.encode(), json.dumps(order).encode()
