"""Windowed computations: what, where, when and how.

windows, triggers, windowing   values that users write; `windowing` combines them
columns                        the schema of the table of windows
placement                      the windows that rows belong to
intake                         merge rows into the table of windows
recomputation                  sessions and sliding windows over changes, made again from the rows that remain
lateness                       rows that no window accepts
trigger_columns                triggers as columns of the table of windows
panes                          the rows that a firing emits
kernel                         all of these as one kernel

A new trigger is a class in `triggers` and a node in `trigger_columns`. A new kind of window is a class in
`windows` and its bounds in `placement`.
"""
