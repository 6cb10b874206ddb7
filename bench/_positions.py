"""Print every change of position of an app's views, with its time: `_positions.py DATA COUNT`.

A process of its own, so that it reads the store with the source of the app that is measured. Prints `ready` when
all is imported, then lines of JSON: the view, and the monotonic time, which all processes of a machine share.
"""

import json
import sys
import time

import headwater as hw

LOOK_EVERY_S = 0.03
DATA, COUNT = sys.argv[1], int(sys.argv[2])


def open_views() -> hw.Views:
    """Wait until the app has declared all its views."""
    while True:
        try:
            views = hw.Views(DATA)
            if len(views.names()) == COUNT:
                return views
            views.close()
        except hw.errors.HeadwaterError:
            pass  # There is no store yet, or it has no tables.
        time.sleep(0.1)


print("ready", flush=True)
found = open_views()
readers = [found[name] for name in found.names()]
positions = dict.fromkeys(found.names(), 0)
while True:
    for reader in readers:
        position = reader.position()
        if position != positions[reader.name]:
            positions[reader.name] = position
            print(json.dumps([reader.name, time.monotonic()]), flush=True)
    time.sleep(LOOK_EVERY_S)
