"""`python -m duetime_retry`: the retry service."""

import duetime_core.starting  # noqa: F401  first, so that all others load faster
from duetime_core.node.life import main

from duetime_retry.node import RetryNode
from duetime_retry.settings import RetrySettings

if __name__ == "__main__":
    main("retry", RetrySettings, RetryNode)
