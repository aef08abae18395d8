"""Imported first by processes of the cluster: other modules then load with less work.

Shares of the processor time of a gateway's imports: collections of garbage took 12 %, half of that in one collection of
all objects; structlog's support for rich took 6 %, though duetime_core.telemetry.traces formats the traces of our logs;
a search for plug-ins of pydantic in all installed packages took 1 %.
"""

import gc
import os
import sys

# Nearly all objects of modules stay. `duetime_core.node.life.main` enables collections again.
gc.disable()
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

_UNUSED = "rich"
if _UNUSED not in sys.modules:
    # Python raises ImportError for it, and structlog does without.
    sys.modules[_UNUSED] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules[_UNUSED]
