"""Seeded, repeatable crash tests. `./dev torture` runs many seeds; the test suite runs a few.

- `log`: the command for crashes of the log. `storage` crashes a partition's storage by power loss, `clients` a
  whole broker under producers and consumers.
- `sinks`: the command for crashes of an app that writes to sinks. `subjects` holds the sinks it can test.
- `app`: the command for crashes of a whole app with its log. `shop` holds the app's program and its expected
  outputs, `shop_run` runs it.
- `windows`: the command for crashes of a windowed aggregation on Spark.
"""
