"""Windowed computations: what, where, when and how.

windows, triggers, windowing   values that users write; `windowing` combines them
placement                      assign rows to windows
intake, lateness               merge rows into window state; rows that no window accepts
trigger_columns, trigger_end   triggers as columns of the table of windows; triggers that can finish
panes                          what a firing emits
kernel                         all of these as one kernel
"""
