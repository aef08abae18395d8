"""Tasks: functions whose calls are messages, their app, and their runs in tests."""
