"""Stream computations as pure values and kernels: no Spark, no clock, no IO.

    windows        windows, triggers, panes and the kernel that computes them
    tables         changelogs, joins, aggregates and rankings over tables that change
    aggregates     aggregate functions as columns
    device_clocks  estimate and correct the clock error of devices

Shared by all: `kernel` (the interface that runners run), `table` (a kernel's state), `changes` (rows with
weights), `watermarks` and `durations`.
"""
