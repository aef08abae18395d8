"""Tasks, run by `manage.py duetime_work`. Each may run twice for one message: the second run changes nothing."""

from django.core.mail import send_mail
from django.db import transaction
from duetime.django import app

from orders.models import Order, State


@app.task(retry="exponential:1s..10m", max_attempts=8, timeout="30s")
def cancel_unpaid(order_id: int) -> None:
    with transaction.atomic():
        order = Order.objects.select_for_update().get(pk=order_id)
        if order.state == State.OPEN:
            order.state = State.CANCELLED
            order.save(update_fields=["state"])
            mail_customer.send_in("default", order_id)


@app.task(topic="mail", retry="exponential:10s..1h", max_attempts=20, timeout="1m")
def mail_customer(order_id: int) -> None:
    order = Order.objects.get(pk=order_id)
    send_mail(f"Order {order.pk} is {order.state}", order.item, "shop@example.com", ["customer@example.com"])
