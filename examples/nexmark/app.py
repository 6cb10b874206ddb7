"""Nexmark's queries as an app: results that change are views, results that are only appended go to Parquet files.

python events.py .                          writes side_input.csv, which q13 reads
NEXMARK=q4,q9 headwater run app.py          runs q4 and q9; all queries at once are too many for a laptop
python feed.py 100000                       sends events
headwater view rows q4                      shows the result
"""

import os
from inspect import signature

from events import SCHEMAS
from queries import KEYS, QUERIES

import headwater as hw

app = hw.App("nexmark")
topics = {
    kind: app.topic(kind, schema=schema, event_time="date_time", delay="4 seconds")
    for kind, schema in SCHEMAS.items()
}

for name in os.environ.get("NEXMARK", ",".join(QUERIES)).split(","):
    query = QUERIES[name]
    inputs = [topics[kind] for kind in signature(query).parameters if kind in topics]
    if name in KEYS:
        app.view(*inputs, key=KEYS[name])(query)
    else:
        app.sink(*inputs, to=hw.Parquet(f"results/{name}"))(query)
