"""The gateway as a process: `python -m duetime_gateway`."""

from duetime_core.node import main

from duetime_gateway.node import GatewayNode
from duetime_gateway.settings import GatewaySettings

main("gateway", GatewaySettings, GatewayNode)
