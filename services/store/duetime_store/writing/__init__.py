"""The write path: from incoming records to durable, visible records.

store       the shard's state, and the only code that changes it
staging     outcomes of puts, and the batch of one flush
faults      reasons to reject records of a put
repeats     repeated sends
originals   checks a restored record against its pending one
settling    records that end leases and dead letters
halves      half messages of transactions, and their ends
half_faults reasons to reject half messages
ends        pending entries that end without being restored
indexed     the first record of a journal with index words
holding     restored records that arrive before their due time
stand_ins   unowned lanes, given to schedulers without a lease
flusher     writes and flushes batches
watch       checks for a disk that is full, slow or failed
room        disk space reserved for restores
late        queue units not written yet
metrics     the shard's state, read when scraped
"""
