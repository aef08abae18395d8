"""Consume queues: one unit for each message of a topic's queue, with the place of its record in the log.

consumequeue  one queue: units on disk, units not durable yet, waiters for more
queuedisk     a bounded set of open files for all queues
queuetable    begin and end of each queue, in one file for all
queues        all queues of a shard
halfqueue     half messages: the existing ones, and their ends
topics        the topics, and the number of queues of each
scattered     reads units at any offsets of a queue
"""
