"""The tables of the data source: for each a `plan`, which cuts it into tasks, and the task, which a worker runs."""
