"""`python -m duetime_webhooks`: the webhook worker."""

import duetime_core.starting  # noqa: F401  first, so that all others load faster
from duetime_core.node.life import main

from duetime_webhooks.node import WebhookNode
from duetime_webhooks.settings import WebhookSettings

if __name__ == "__main__":
    main("webhooks", WebhookSettings, WebhookNode)
