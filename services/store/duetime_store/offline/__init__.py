"""Reads store directories without a store: any broker's or ours, stopped, killed or in use; never writes to them.

files      log and queue files, read only; they may grow or vanish in the meantime
state      the directory's content once its queues are brought in line with its log, in memory
units      one line for each consume queue unit
summary    topics, offsets, pending messages, and the rest, as one object
verify     checks every byte that the format can verify
transfer   imports a directory into a cluster's data, or exports one for a broker
cli        `duetime store`

Takes no lock. A directory in use is read up to the end of its log at that time.
"""
