import headwater as hw

app = hw.App("shop")
orders = app.topic(
    "orders",
    schema="order_id string, product string, amount double, placed_at timestamp",
    event_time="placed_at",
)


@app.view(orders, key=["product", "window"])
def revenue(orders):
    return orders.transform(
        hw.windowed(
            what={"revenue": hw.sum("amount"), "orders": hw.count()},
            where=hw.Tumbling("1 minute"),
            by=["product"],
        )
    )
