"""An entry of Django's admin, without a table."""

from django.db import models


class ConsoleLink(models.Model):
    """The console in the admin's list of models. Users need its permission `duetime.view_consolelink`."""

    class Meta:
        managed = False
        default_permissions = ("view",)
        verbose_name = verbose_name_plural = "console"
