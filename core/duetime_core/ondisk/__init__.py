"""The files of a shard, as whoever reads them sees them: a store at its start, its offline commands, Spark.

units       what a queue's files hold                history      which level table was in force when
columns     records of the log, as columns           scan         walking the records of a log
checkpoint  how far queues and watermarks are        configs      the JSON files
files       the files of a log and of queues         state        what a whole directory holds
gone        which dead letters are gone
levels      what stands in a unit's tagsCode         timers       those of a 5.x broker
group_events  what groups did, as records of DT_GROUPS tell it
"""
