"""Assemble a running app: one context manager for each part, started in this order and stopped in reverse.

    settings  how an app is run
    log       the embedded broker, or the address of Apache Kafka, with the app's topics
    store     the databases of views and facts
    console   the HTTP API and the console
    spark     the Spark session with the app's pipeline, restarted when Spark's Java dies
    run       all of them together
    summary   the results of a run in words
    running   an app in the background of a Python program

Each context manager yields what the next parts need, and can be used alone, as the tests do.
"""
