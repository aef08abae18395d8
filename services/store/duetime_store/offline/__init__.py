"""Reads store directories without a store: any broker's or ours, stopped, killed or in use; never writes to them.

files      log and queue files, read only, that may grow or vanish meanwhile
state      the directory's content once its queues are brought in line with its log, in memory
units      one line for each consume queue unit
summary    topics, offsets, pending messages, and the rest, as one object
verify     checks every byte that the format can verify
transfer   a directory taken into a cluster's data, or given back to a broker
cli        `duetime store`

No lock is taken. A directory in use is read up to where its log ended when the reading came there.
"""
