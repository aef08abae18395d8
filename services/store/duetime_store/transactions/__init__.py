"""Transactions: half messages that are open, how they end, and who is asked about them.

table      the open ones, as columns; wheel: by the moment of their next check
tablefile  the table beside a checkpoint; keeping: saves it
preparing  Prepare
ending     EndTransactions
results    where a committed message is
looking    GetTransaction and ListTransactions
checks     TakeChecks and ReportChecks; giving_up: what is asked about no more
metrics    what is open, and what became of the others
"""
