"""Consume queues: for each message of a topic's queue one unit that names its record in the log.

consumequeue  one queue: units on disk, units not durable yet, waiters for more
queuedisk     a bounded set of open files for all queues
queuetable    where each queue begins and ends, in one file for all
queues        all queues of a shard
halfqueue     half messages: which are there, and which have ended
topics        which topics there are, and how many queues each has
scattered     reads units that lie anywhere in a queue
rebuilt       which records a rebuild left out
"""
