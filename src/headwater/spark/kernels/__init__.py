"""Run a kernel of `process` as a stateful operator of a streaming query.

attach                      attach a kernel to a DataFrame: the function that every operator calls
runner, processor           run the kernel for each bucket; Spark's side of it
times                       the origin of a kernel's event time, watermark and clock
packing, output_frames      rows to the buckets; results back to rows
bucket_state, run_cache     a bucket's tables in Spark's state store; a cache of them on each machine
frames                      Polars frames as bytes and as Spark types
watermark_sources           watermarks of several inputs
change_lineage              follows `_change` from one operator to the next, and refuses steps that lose it
column_names                columns by their exact names; names that operators cannot use
step_reports, spool         statistics and late rows, passed to the driver through files
query_context               the query that an operator is part of
"""
