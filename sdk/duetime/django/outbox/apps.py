"""The Django app `duetime.django.outbox`."""

from importlib.util import find_spec

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured

NAME = "duetime.django.outbox"


class OutboxConfig(AppConfig):
    """The entry of INSTALLED_APPS."""

    name = NAME
    label = "duetime_outbox"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "DueTime outbox"

    def import_models(self) -> None:
        """Raises: ImproperlyConfigured: SQLAlchemy is missing."""
        if find_spec("sqlalchemy") is None:
            raise ImproperlyConfigured(f"{NAME} needs the extra outbox: pip install 'duetime[django,outbox]'")
        super().import_models()
