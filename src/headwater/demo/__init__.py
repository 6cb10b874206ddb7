"""The demo: the README's app (`shop`), and the orders for it (`traffic`)."""
