"""The files of a shard from the side of their readers: a store at startup, its offline commands, Spark.

scan        walks the records of a log               history      level tables, and when each applied
checkpoint  progress of queues and watermarks        configs      the JSON files
files       the files of a log and of queues         state        the content of a whole directory
gone        dead letters that are gone               timers       those of a 5.x broker
levels      the tagsCode of a unit                   topics       topics missing in topics.json
"""
