"""An outbox in the databases of a Django project: calls of tasks are rows of the transaction, and a relay sends them.

INSTALLED_APPS = ["duetime.django", "duetime.django.outbox", ...]

cancel_unpaid.with_options(delay="30m").send_in("default", order.pk)     # committed with the order, or not at all

python manage.py duetime_relay

The table is that of `duetime.outbox`, whose relay moves its rows. Needs the extra `outbox`.
"""
