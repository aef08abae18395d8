"""The rows of the outbox: the table of `duetime.outbox.table` as a model."""

from django.db import models
from duetime_format.limits import ID_CHARS_MAX, TOPIC_CHARS_MAX

from duetime.outbox.table import DOUBTFUL, FAILED, SENT, TABLE_NAME, WAITING


class OutboxRow(models.Model):
    """A message that the relay moves to the server. Times are the database's, in Unix milliseconds."""

    id = models.BigAutoField(primary_key=True)
    message_id = models.CharField(max_length=ID_CHARS_MAX)
    topic = models.CharField(max_length=TOPIC_CHARS_MAX)
    body = models.BinaryField()
    # JSON. The type `jsonb` would reject U+0000 in a property.
    options = models.TextField()
    order_key = models.TextField()
    created_at_ms = models.BigIntegerField()
    due_at_ms = models.BigIntegerField(null=True)
    state = models.CharField(max_length=8, choices=[(one, one) for one in (WAITING, SENT, FAILED, DOUBTFUL)])
    next_at_ms = models.BigIntegerField()
    claim = models.CharField(max_length=32)
    attempts = models.IntegerField()
    handed_at_ms = models.BigIntegerField(null=True)
    error = models.TextField()

    class Meta:
        db_table = TABLE_NAME
        verbose_name = "message"
        indexes = (
            models.Index(fields=["state", "id"], name="ix_duetime_outbox_state_id"),
            models.Index(fields=["state", "next_at_ms"], name="ix_duetime_outbox_state_next"),
        )

    def __str__(self) -> str:
        return f"{self.message_id} for {self.topic}"
