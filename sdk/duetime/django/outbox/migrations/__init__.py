"""Migrations of `duetime.django.outbox`."""
