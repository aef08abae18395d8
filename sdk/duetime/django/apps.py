"""The Django app `duetime.django`: imports the modules `tasks` of the installed apps, and checks the settings."""

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.utils.module_loading import autodiscover_modules

from duetime.django.configuration import SETTING, faults


class DueTimeConfig(AppConfig):
    """The entry of INSTALLED_APPS."""

    name = "duetime.django"
    label = "duetime"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "DueTime"

    def ready(self) -> None:
        """Imports the tasks. If the setting has faults it imports none: the system checks report the faults."""
        checks.register(check_configuration)
        if not faults():
            autodiscover_modules("tasks")


def check_configuration(app_configs: Any, **_: Any) -> list[checks.Error]:
    """The system check of the setting."""
    hint = f'See `Configuration`, for instance: {SETTING} = {{"NAME": "shop", "SERVER": "gateway:9800"}}'
    return [checks.Error(fault, hint=hint, id="duetime.E001") for fault in faults()]
