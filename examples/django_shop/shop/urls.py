"""The pages of the shop."""

from django.urls import path
from orders import views

urlpatterns = [
    path("", views.index),
    path("orders/", views.place),
    path("orders/<int:order_id>/pay/", views.pay),
]
