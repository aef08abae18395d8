"""`python -m duetime_retry`: the retry service."""

from duetime_core.node import main

from duetime_retry.node import RetryNode
from duetime_retry.settings import RetrySettings

if __name__ == "__main__":
    main("retry", RetrySettings, RetryNode)
