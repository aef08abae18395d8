"""The read path: from queues to records, filtered, in turns.

reader         Pull and PullDue
subscriptions  queues of a topic in a stream, by Pull's looks
gather         records of many units in one pass
repair         units whose record is not the one that they name
filters        tags and SQL
sql            parses an expression
conditions     evaluates it on records
turns          whose turn it is to scan, and for how long
offsets        offsets by time
listing        ListLanes and the lists of topics
messages       records as messages of the contract
"""
