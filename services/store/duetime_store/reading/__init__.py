"""The read path: from queues to records, filtered, in turns.

reader         Pull and PullDue
subscriptions  queues of a topic in a stream, each read as Pull does
gather         records of many units in one pass
repair         inspects and repairs units that do not match their records
filters        tags and SQL
sql            parses an expression
conditions     evaluates it on records
turns          shares the event loop among scans
offsets        offsets by time
listing        ListLanes and the lists of topics
messages       records as messages of the contract
"""
