"""`python -m duetime_spark JOB SOURCE...`, and what `spark-submit` runs: the same as `duetime spark`."""

from duetime_spark.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
