"""The app of the project of DJANGO_SETTINGS_MODULE, for workers: `duetime work duetime.django.worker:app`."""

import django

django.setup()

from duetime.django import app  # noqa: E402  needs the installed apps

__all__ = ["app"]
