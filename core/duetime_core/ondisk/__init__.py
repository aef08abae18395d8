"""The files of a shard, as whoever reads them sees them: a store at its start, its offline commands, Spark.

scan        walking the records of a log             history      which level table was in force when
checkpoint  how far queues and watermarks are        configs      the JSON files
files       the files of a log and of queues         state        what a whole directory holds
gone        which dead letters are gone              timers       those of a 5.x broker
levels      what stands in a unit's tagsCode         topics       topics that are not in topics.json yet
"""
