"""Pending messages in order of due time, with memory for a few of them: sorted runs on disk.

rows      the rows of the order; pure
manifest  the list of runs that make up the order, as bytes; pure
memtable  rows of the last seconds, in memory
runs      sorted files that never change
walk      reads several of them as one sequence
merging   makes one run of several
window    the next rows in memory, for repeated reads of the head
topics    numbers for names of topics
order     all of it together
"""
