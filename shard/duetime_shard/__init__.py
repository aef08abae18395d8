"""One reading of a shard's files: for a starting store, its offline commands, and Spark. It writes nothing.

disk         files of a folder, or of a copy      files        the files of a log and of queues
walk         intact records of a log, in runs     batches      batches with missing records
facts        the effects of records               history      level tables, and when each applied
rebuilding   units of queues from records         queues       queues as a store would serve them
lanes        the progress of lanes                laneends     ends of lane entries
pending      the pending entries of lanes         halves       half messages, open and ended
shard        the content of a whole directory     records      single records of it
checkpoint   progress of queues and watermarks    configs      the JSON files
gone         removed dead letters                 topics       topics missing in topics.json
levels       the tagsCode of a unit               brokers      files written by brokers only
"""
