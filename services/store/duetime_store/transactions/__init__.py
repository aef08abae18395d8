"""Transactions: open half messages, their ends, and the checks that ask their producers.

table      the open ones, as columns; wheel: by the time of their next check
tablefile  the table beside a checkpoint
preparing  Prepare
ending     EndTransactions
results    the place of a committed message
looking    GetTransaction and ListTransactions
checks     TakeChecks and ReportChecks; giving_up: transactions past their last check
metrics    counts of open and ended transactions
"""
