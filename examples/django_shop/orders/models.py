"""Orders, and their changes, each a transaction."""

from django.conf import settings
from django.db import models, transaction


class State(models.TextChoices):
    OPEN = "open"
    PAID = "paid"
    CANCELLED = "cancelled"


class Order(models.Model):
    item = models.CharField(max_length=100)
    state = models.CharField(max_length=16, choices=State, default=State.OPEN)
    placed_at = models.DateTimeField(auto_now_add=True)
    # The id of the message that cancels it.
    timeout_id = models.CharField(max_length=64, blank=True)


def place(item: str) -> Order:
    """Places an order. Its time-out is sent if and when the transaction commits."""
    from orders.tasks import cancel_unpaid

    with transaction.atomic():
        order = Order.objects.create(item=item)
        order.timeout_id = cancel_unpaid.with_options(delay=settings.PAYMENT_DELAY).send_in("default", order.pk)
        order.save(update_fields=["timeout_id"])
    return order


def pay(order_id: int) -> bool:
    """Pays an order that is open; returns whether it was."""
    from orders.tasks import cancel_unpaid

    with transaction.atomic():
        order = Order.objects.select_for_update().get(pk=order_id)
        if order.state != State.OPEN:
            return False
        order.state = State.PAID
        order.save(update_fields=["state"])
        # A time-out that has just begun finds the order paid: the cancel only saves it the run.
        transaction.on_commit(lambda: cancel_unpaid.cancel(order.timeout_id), robust=True)
    return True
