"""An order that is not paid in time is cancelled. A payment cancels the timeout.

python examples/payment_timeout.py          30 minutes
python examples/payment_timeout.py 5s       a quick run
"""

import sys

from duetime import CancelResult, Consumer, LeasedMessage, Producer

TOPIC = "order-timeouts"
TIME_TO_PAY = sys.argv[1] if len(sys.argv) > 1 else "30m"


class Shop:
    """Orders and their states. A real shop stores both columns in its database."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.states: dict[str, str] = {}
        self.timeout_ids: dict[str, str] = {}

    def place(self, number: str) -> None:
        self.states[number] = "unpaid"
        receipt = self.producer.send(TOPIC, number.encode(), delay=TIME_TO_PAY, key=number)
        self.timeout_ids[number] = receipt.message_id
        print(f"order {number}: placed, pay within {TIME_TO_PAY}", flush=True)

    def pay(self, number: str) -> bool:
        """The answer to a cancel is final: a CANCELLED timeout never arrives; a fired one cannot be cancelled."""
        if self.producer.cancel(self.timeout_ids[number]) is not CancelResult.CANCELLED:
            print(f"order {number}: the payment came too late", flush=True)
            return False
        self.states[number] = "paid"
        print(f"order {number}: paid, its timeout is cancelled", flush=True)
        return True

    def time_out(self, number: str) -> None:
        """May be called twice for an order, since messages are delivered at least once."""
        if self.states.get(number) == "unpaid":
            self.states[number] = "cancelled"
            print(f"order {number}: not paid, cancelled", flush=True)

    def is_waiting(self) -> bool:
        return "unpaid" in self.states.values()


def main() -> None:
    consumer = Consumer(group="shop")
    with Producer() as producer:
        shop = Shop(producer)

        @consumer.handler(TOPIC)
        def time_out(message: LeasedMessage) -> None:
            shop.time_out(message.body.decode())
            if not shop.is_waiting():
                consumer.stop()

        for number in ("1", "2", "3"):
            shop.place(number)
        shop.pay("2")
        consumer.run()  # a real worker runs until SIGTERM
        shop.pay("3")


if __name__ == "__main__":
    main()
