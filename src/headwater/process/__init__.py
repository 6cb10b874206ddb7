"""What streams mean: values that describe a computation. Pure; no Spark, no clock, no IO."""
