"""Counts of pending messages, by lane, topic and due time.

cells      keys of cells, and sorted columns of them
counts     the table: counting, refining and folding
survey     counts entries that are scanned, while others come and leave
tally      the buckets of an answer
countfile  the table as a file
"""
