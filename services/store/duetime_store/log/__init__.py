"""The commit log: segments of records, how records that arrive are parsed, and which were seen lately.

segment    one file, mapped
commitlog  all of them as one row of positions
intake     records to be put, as columns
recent     the ids of the newest messages
journal    events of consumer groups on their way to the log
"""
