"""The page of all orders, and its two buttons."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from orders import models


def index(request: HttpRequest) -> HttpResponse:
    return render(request, "orders/index.html", {"orders": models.Order.objects.order_by("-pk")[:100]})


@require_POST
def place(request: HttpRequest) -> HttpResponse:
    item = request.POST.get("item", "").strip()
    if not 0 < len(item) <= 100:
        return HttpResponse("an item has 1 to 100 characters", status=422)
    models.place(item)
    return redirect("/")


@require_POST
def pay(request: HttpRequest, order_id: int) -> HttpResponse:
    try:
        paid = models.pay(order_id)
    except models.Order.DoesNotExist:
        return HttpResponse("no such order", status=404)
    return redirect("/") if paid else HttpResponse("it is not open", status=409)
