"""`python -m duetime_store`: one shard."""

from duetime_core.node import main

from duetime_store.node import StoreNode
from duetime_store.settings import StoreSettings

if __name__ == "__main__":
    main("store", StoreSettings, StoreNode)
