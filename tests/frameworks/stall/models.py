"""A model of the tests' Django app."""

from django.db import models


class Parcel(models.Model):
    """A row of a transaction that sends."""

    name = models.CharField(max_length=20)

    class Meta:
        app_label = "stall"
