"""A shop in Django: orders that are cancelled if they are not paid in time.

python manage.py migrate
python manage.py runserver              http://127.0.0.1:8000
python manage.py duetime_work           in another terminal: cancels unpaid orders
python manage.py test                   without a server
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
