"""The entry of the admin, which has no table."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    operations = [
        migrations.CreateModel(
            name="ConsoleLink",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
            ],
            options={
                "verbose_name": "console",
                "verbose_name_plural": "console",
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    ]
