"""The read path: from queues to records, filtered, in turns.

reader      Pull and PullDue
gather      records of many units in one pass
repair      units whose record is not the one that they name
filters     tags and SQL
sql         the text of an expression; conditions: judging records by it
turns       who scans, and for how long
offsets     offsets by time
listing     ListLanes and the lists of topics
messages    records as messages of the contract
"""
