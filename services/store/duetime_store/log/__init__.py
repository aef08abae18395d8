"""The commit log: segments of records, parsing of incoming records, and recent ids.

segment    one file, mapped
commitlog  all segments as one sequence of positions
intake     records of a put, as columns
newkeys    index keys of the newest records
recent     the ids of the newest messages
journal    events of consumer groups on their way to the log
"""
