"""Operators for `df.transform(...)`.

windowed       windows with triggers and panes
device_clocks  `hw.correct_clocks`
tables         `hw.table`
joins          `hw.join`
groups         `hw.aggregate`, `hw.top`, `hw.deduplicate`, `hw.rolling`, `hw.union`
side_input     a file or function as the right side of a join
timing         read the event time and the watermark of a DataFrame
null_times     find out whether rows may have no event time

A new operator is a kernel in `headwater.process` and a function here that calls `attach` of
`headwater.spark.kernels.attach`, which lists the steps.
"""
