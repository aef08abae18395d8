"""Alembic's environment, inside the package, so that an installed DueTime can migrate."""
