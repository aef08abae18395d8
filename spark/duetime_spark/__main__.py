"""`python -m duetime_spark JOB SOURCE...`, for `spark-submit` too: the same as `duetime spark`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts the folder of the started file first: the package's modules would hide others of the same name.
    if sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
        del sys.path[0]
    from duetime_spark.cli import main

    raise SystemExit(main())
