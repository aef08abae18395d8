"""A Django project for the tests, of one app with tasks, whose database is a file."""

from pathlib import Path

import django
import pytest
from django.conf import settings

DATABASE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ""}
settings.configure(
    DUETIME={"NAME": "stall"},
    INSTALLED_APPS=["duetime.django", "tests.frameworks.stall"],
    DATABASES={"default": DATABASE},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
)
django.setup()


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the project's database, with its tables."""
    from django.core.management import call_command

    path = tmp_path_factory.mktemp("django") / "db.sqlite3"
    DATABASE["NAME"] = str(path)
    call_command("migrate", run_syncdb=True, verbosity=0)
    return path
