"""The write path: from incoming records to records that are durable and visible.

store       the shard's state, and the only code that changes it
staging     outcomes of puts, and the batch that one flush makes durable
faults      why records of a put are refused
repeats     repeated sends
originals   whether a restored record is the pending one
settling    records that end leases and dead letters
halves      half messages of transactions, and their ends
half_faults why half messages are refused
ends        pending entries that end without being restored
indexed     from which record on journals have index words
holding     restored records that arrive before their due time
stand_ins   lanes that nobody serves, given to schedulers without a lease
flusher     writes and flushes batches
watch       checks for a disk that is full, slow or failed
room        disk space that pending messages need to be restored
late        queue units that could not be written
metrics     the shard's state, read when scraped
"""
