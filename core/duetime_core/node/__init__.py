"""The life of a process: settings, start, signals, the pages for metrics and health, stop."""
