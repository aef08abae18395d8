"""`python -m duetime_scheduler`: one scheduler process."""

import duetime_core.starting  # noqa: F401  first, so that all others load faster
from duetime_core.node.life import main

from duetime_scheduler.node import SchedulerNode
from duetime_scheduler.settings import SchedulerSettings

if __name__ == "__main__":
    main("scheduler", SchedulerSettings, SchedulerNode)
