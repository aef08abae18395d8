"""`manage.py duetime_work`: runs the project's tasks in processes."""

from typing import Any

from duetime.django.commands import DueTimeCommand, share_path


class WorkCommand(DueTimeCommand):
    """`duetime work` for the project: with its options, and after the system checks."""

    help = "Run the tasks of the project until SIGTERM or Ctrl-C: `duetime work`."
    words = ("work",)

    def arguments(self, options: dict[str, Any]) -> list[str]:
        share_path()
        return ["duetime.django.worker:app"]


Command = WorkCommand
