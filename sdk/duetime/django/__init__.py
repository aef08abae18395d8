"""Tasks in Django: found in the installed apps, sent with a transaction, run by `manage.py duetime_work`.

INSTALLED_APPS = ["duetime.django", ...]
DUETIME = {"NAME": "shop", "SERVER": "gateway:9800"}

# orders/tasks.py
from duetime.django import app

@app.task
def cancel_unpaid(order_id: int) -> None: ...

# in a view
cancel_unpaid.with_options(delay="30m").send_in("default", order.pk)

Needs the extra `django`. `app` is made of the settings at its first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duetime.django.application import app

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module("duetime.django.application"), name)
    globals()[name] = value
    return value
