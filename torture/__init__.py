"""Crashes, seeded and repeatable: what `./dev torture` runs for long, and the tests for a few seeds."""
