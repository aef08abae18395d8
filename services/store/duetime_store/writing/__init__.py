"""The write path: from records that arrive to records that are durable and seen.

store      the shard's state, and the only code that changes it
staging    outcomes of puts, and the batch that one flush makes durable
faults     what is wrong with records that are put
repeats    repeated sends
originals  whether a restored record is the pending one
holding    restored records that come before their time
stand_ins  lanes that nobody serves, given to whoever asks
flusher    writes and flushes batches
watch      a disk that is full, slow or failed
room       what pending messages need to be restored
late       queue units that could not be written
metrics    the shard's state, read when scraped
"""
