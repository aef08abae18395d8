"""`python -m duetime_store`: one shard."""

import duetime_core.starting  # noqa: F401  first, so that all others load faster
from duetime_core.node.life import main

from duetime_store.node import StoreNode
from duetime_store.settings import StoreSettings

if __name__ == "__main__":
    main("store", StoreSettings, StoreNode)
