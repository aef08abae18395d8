"""The tables of the data source: each has a `plan` function that divides it into tasks, and a task for workers."""
