"""Operators for `df.transform(...)`.

windowed    windows with triggers and panes; correction of device clocks
tables      `hw.table`, and how an operator over changes is attached
joins       `hw.join`
groups      `hw.aggregate`, `hw.top`, `hw.deduplicate`, `hw.rolling`, `hw.union`
side_input  a file or function as the right side of a join
"""
