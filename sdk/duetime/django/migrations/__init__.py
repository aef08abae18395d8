"""Migrations of `duetime.django`."""
