"""The commit log: segments of records, parsing of incoming records, and the ids seen lately.

segment    one file, mapped
commitlog  all segments as one sequence of positions
intake     records to be put, as columns
newkeys    index keys of the newest records
recent     the ids of the newest messages
journal    events of consumer groups on their way to the log
"""
