"""Store directories read without a store: any broker's or ours, stopped, killed or in use, and never written to.

files      log and queue files, read only, that may grow or vanish meanwhile
state      what the directory holds once its queues are brought in line with its log, in memory
units      one line for each consume queue unit
summary    topics, offsets, what is pending, and the rest, as one object
verify     every byte that the format can tell the truth of
transfer   a directory taken into a cluster's data, or given back to a broker
cli        `duetime store`

No lock is taken. A directory in use is read up to where its log ended when the reading came there.
"""
