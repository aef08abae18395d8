"""DueTime's data pipeline on Spark: a data source that reads store directories and running stores, and jobs on it."""
