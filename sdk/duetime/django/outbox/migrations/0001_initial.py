"""The table of the outbox."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    operations = [
        migrations.CreateModel(
            name="OutboxRow",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("message_id", models.CharField(max_length=255)),
                ("topic", models.CharField(max_length=127)),
                ("body", models.BinaryField()),
                ("options", models.TextField()),
                ("order_key", models.TextField()),
                ("created_at_ms", models.BigIntegerField()),
                ("due_at_ms", models.BigIntegerField(null=True)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "waiting"),
                            ("sent", "sent"),
                            ("failed", "failed"),
                            ("doubtful", "doubtful"),
                        ],
                        max_length=8,
                    ),
                ),
                ("next_at_ms", models.BigIntegerField()),
                ("claim", models.CharField(max_length=32)),
                ("attempts", models.IntegerField()),
                ("handed_at_ms", models.BigIntegerField(null=True)),
                ("error", models.TextField()),
            ],
            options={
                "verbose_name": "message",
                "db_table": "duetime_outbox",
                "indexes": [
                    models.Index(fields=["state", "id"], name="ix_duetime_outbox_state_id"),
                    models.Index(fields=["state", "next_at_ms"], name="ix_duetime_outbox_state_next"),
                ],
            },
        ),
    ]
