"""Pending messages in order of due time, with memory for a few of them: sorted runs on disk.

rows      what the order is made of; pure
manifest  which runs make up the order, and what they hold; its bytes; pure
memtable  rows of the last seconds, in memory
runs      sorted files that never change
walk      reads several of them as one sequence
merging   makes one run of several
window    the next rows in memory, for those who read the head again and again
topics    numbers for names of topics
order     all of it together
"""
