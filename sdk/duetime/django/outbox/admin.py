"""The outbox in Django's admin: its rows without their bodies, and the ends of faulty ones."""

from typing import Any
from urllib.parse import quote, urlencode

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from duetime.client.message import moment
from duetime.django.configuration import configuration
from duetime.django.outbox.models import OutboxRow
from duetime.outbox.table import DOUBTFUL, FAILED, WAITING

HIDDEN = ("body", "message_id")


@admin.register(OutboxRow)
class OutboxRowAdmin(admin.ModelAdmin):
    """Rows can be read; failed and doubtful ones can be sent again, or deleted as sent."""

    list_display = ("message", "topic", "state", "created", "due", "attempts", "error")
    list_filter = ("state", "topic")
    search_fields = ("message_id",)
    ordering = ("-id",)
    exclude = HIDDEN
    readonly_fields = ("message", *(one.name for one in OutboxRow._meta.fields if one.name not in HIDDEN))
    actions = ("send_again", "delete_as_sent")

    @admin.display(description="message", ordering="message_id")
    def message(self, row: OutboxRow) -> str:
        """The id, as a link to the console if that is configured."""
        console = configuration().console
        if console is None:
            return str(row.message_id)
        address = f"{console.rstrip('/')}/messages/{quote(row.message_id, safe='')}?{urlencode({'topic': row.topic})}"
        return str(format_html('<a href="{}">{}</a>', address, row.message_id))

    @admin.display(ordering="created_at_ms")
    def created(self, row: OutboxRow) -> Any:
        return moment(row.created_at_ms)

    @admin.display(ordering="due_at_ms")
    def due(self, row: OutboxRow) -> Any:
        return None if row.due_at_ms is None else moment(row.due_at_ms)

    @admin.action(permissions=["change"], description="Send failed and doubtful messages again")
    def send_again(self, request: HttpRequest, rows: QuerySet[OutboxRow]) -> None:
        """They were not sent."""
        reset = {"state": WAITING, "next_at_ms": 0, "attempts": 0, "handed_at_ms": None, "error": ""}
        self._report(request, _faulty(rows).update(**reset), "will be sent")

    @admin.action(permissions=["change"], description="Delete failed and doubtful messages as sent")
    def delete_as_sent(self, request: HttpRequest, rows: QuerySet[OutboxRow]) -> None:
        """They were sent, or are to be dropped."""
        self._report(request, _faulty(rows).delete()[0], "deleted")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: OutboxRow | None = None) -> bool:
        """Waiting rows are messages: no row is deleted but by the action."""
        return False

    def _report(self, request: HttpRequest, count: int, what: str) -> None:
        self.message_user(request, f"{count:,} {what}", messages.SUCCESS if count else messages.WARNING)


def _faulty(rows: QuerySet[OutboxRow]) -> QuerySet[OutboxRow]:
    return rows.filter(state__in=(FAILED, DOUBTFUL))
