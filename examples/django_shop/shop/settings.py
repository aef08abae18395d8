"""Settings of the shop."""

import os
from pathlib import Path

# DUETIME_SERVER names the server, else it is localhost:9800.
DUETIME = {"NAME": "shop"}
PAYMENT_DELAY = "30m"

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", Path(__file__).parents[1] / "shop.sqlite3"),
        # Requests and tasks write at the same time: each waits for the other from the beginning of its transaction.
        "OPTIONS": {"init_command": "PRAGMA journal_mode = WAL", "transaction_mode": "IMMEDIATE", "timeout": 30},
    }
}
INSTALLED_APPS = ["duetime.django", "orders"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware", "django.middleware.csrf.CsrfViewMiddleware"]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
ROOT_URLCONF = "shop.urls"
EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
DEBUG = True
SECRET_KEY = "of the example"
