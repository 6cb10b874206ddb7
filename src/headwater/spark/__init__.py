"""How Spark runs it: the only package that imports pyspark."""
