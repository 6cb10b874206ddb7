"""Sinks: write results outside the app. Each implements the contract of `headwater.sink`.

    sqlite, postgres, topic, parquet, delta   exactly once
    webhook, mail                             at least once, with an idempotency key

Shared: `progress` (which batch comes next), `net_changes` (a batch as upserts and deletes), `json_rows`,
`manifests` (which files of a folder count) and `notices` (messages to people and programs).
"""
