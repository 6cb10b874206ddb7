"""The demo: a small shop, its traffic, and the app that adds up its revenue."""
