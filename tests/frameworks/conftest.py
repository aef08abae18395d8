"""A Django project for the tests, of one app with tasks, whose database is a file."""

from pathlib import Path

import django
import pytest
from django.conf import settings

DATABASE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ""}
settings.configure(
    DUETIME={"NAME": "stall", "CONSOLE": "https://console.example.com/"},
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        "duetime.django",
        "duetime.django.outbox",
        "tests.frameworks.stall",
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    ROOT_URLCONF="tests.frameworks.stall.urls",
    STATIC_URL="/static/",
    SECRET_KEY="of the tests",
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
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
