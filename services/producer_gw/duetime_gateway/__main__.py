"""The gateway as a process: `python -m duetime_gateway`."""

import duetime_core.starting  # noqa: F401  first, so that all others load faster
from duetime_core.node.life import main

from duetime_gateway.node import GatewayNode
from duetime_gateway.settings import GatewaySettings

if __name__ == "__main__":
    main("gateway", GatewaySettings, GatewayNode)
