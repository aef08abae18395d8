"""The shop without a server: `app.eager()` runs tasks here, on a clock that the test moves."""

from django.core import mail
from django.db import transaction
from django.test import TransactionTestCase
from duetime.django import app

from orders import models
from orders.models import Order, State


class TimeoutTest(TransactionTestCase):
    def setUp(self) -> None:
        self.eager = self.enterContext(app.eager())

    def order(self) -> Order:
        return Order.objects.get()

    def test_unpaid_order_is_cancelled_after_30_minutes(self) -> None:
        self.client.post("/orders/", {"item": "tea"})
        self.eager.advance("29m")
        self.assertEqual(self.order().state, State.OPEN)
        self.eager.advance("1m")
        self.assertEqual(self.order().state, State.CANCELLED)
        self.assertEqual([one.subject for one in mail.outbox], [f"Order {self.order().pk} is cancelled"])
        self.assertEqual(self.client.post(f"/orders/{self.order().pk}/pay/").status_code, 409)

    def test_paid_order_has_no_timeout(self) -> None:
        self.client.post("/orders/", {"item": "tea"})
        self.client.post(f"/orders/{self.order().pk}/pay/")
        self.assertEqual(self.eager.pending, [])
        self.assertContains(self.client.get("/"), "tea, paid")

    def test_order_that_is_rolled_back_has_none(self) -> None:
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            models.place("tea")
            raise ZeroDivisionError
        self.assertEqual((self.eager.pending, Order.objects.count()), ([], 0))
