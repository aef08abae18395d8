"""The console in Django's admin: a link, if the setting has `CONSOLE`."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponseRedirect

from duetime.django.configuration import configuration, faults
from duetime.django.models import ConsoleLink


class ConsoleLinkAdmin(admin.ModelAdmin):
    """Leads to the console, which has its own sign-in."""

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponseRedirect:
        return HttpResponseRedirect(configuration().console)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: ConsoleLink | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: ConsoleLink | None = None) -> bool:
        return False


if not faults() and configuration().console is not None:
    admin.site.register(ConsoleLink, ConsoleLinkAdmin)
