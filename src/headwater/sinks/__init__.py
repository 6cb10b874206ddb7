"""Sinks: write results outside the app. Each implements the contract of `headwater.sink`.

    sqlite, postgres, topic, parquet, delta   exactly once
    webhook, mail                             at least once, with an idempotency key

Shared: `progress` (which batches are written), `net_changes` (a batch as upserts and deletes), `stream_checks`
(does a stream fit its destination), `json_rows`, and `notices` (the messages of webhooks and mail).

Of one sink: `sqlite_table`, `delta_table`, and `manifests` (the files of a Parquet folder).
"""
