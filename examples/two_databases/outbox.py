"""An outbox: one database changes, and the other follows.

The shop writes an order and a note about it in one transaction. A relay sends notes to the log, at least once. The
warehouse applies each note once, because it stores the note's number in the transaction of its change.
"""

import json

import log
import psycopg

TOPIC = "orders"

SHOP = """
create table if not exists orders (id text primary key, product text, amount int);
create table if not exists outbox (number bigint generated always as identity primary key, note jsonb);
"""
WAREHOUSE = """
create table if not exists stock (product text primary key, "left" int);
create table if not exists seen (number bigint primary key);
"""


def place_order(shop: psycopg.Connection, order: str, product: str, amount: int) -> None:
    """Store the order and its note in one transaction."""
    with shop.transaction():
        shop.execute("insert into orders values (%s, %s, %s)", (order, product, amount))
        note = json.dumps({"order": order, "product": product, "amount": amount})
        shop.execute("insert into outbox (note) values (%s)", (note,))


def relay(shop: psycopg.Connection, servers: str) -> None:
    """Send all notes to the log, oldest first."""
    for number, note in shop.execute("select number, note from outbox order by number").fetchall():
        log.append(servers, TOPIC, note["order"], json.dumps({"number": number, **note}))
        forget(shop, number)  # after a crash before this line, the note is sent again


def forget(shop: psycopg.Connection, number: int) -> None:
    with shop.transaction():
        shop.execute("delete from outbox where number = %s", (number,))


def follow(warehouse: psycopg.Connection, servers: str) -> None:
    """Reduce the stock by the ordered amounts; a repeated note changes nothing."""
    for _, _, value in log.read(servers, TOPIC):
        note = json.loads(value)
        with warehouse.transaction():
            new = warehouse.execute(
                "insert into seen values (%s) on conflict do nothing", (note["number"],)
            ).rowcount
            if new:
                warehouse.execute(
                    'update stock set "left" = "left" - %s where product = %s', (note["amount"], note["product"])
                )
