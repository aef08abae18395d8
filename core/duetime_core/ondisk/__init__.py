"""The files of a shard as their readers see them: a store at its start, its offline commands, Spark.

scan        walking the records of a log             history      which level table was in force when
checkpoint  progress of queues and watermarks        configs      the JSON files
files       the files of a log and of queues         state        the content of a whole directory
gone        which dead letters are gone              timers       those of a 5.x broker
levels      the tagsCode of a unit                   topics       topics that are not in topics.json yet
"""
