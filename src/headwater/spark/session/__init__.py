"""Java and the Spark session.

java     find a Java installation
session  start Spark
jvm      notice that Spark's Java process has died
scala    read Scala's collections
workers  settings of a Python worker process (forked by `source.daemon`)
"""
