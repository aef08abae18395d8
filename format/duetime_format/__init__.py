"""The book of bytes: the layout and meaning of all bytes on disk and on the wire. Imports nothing else of DueTime.

layout      positions of a record's parts            properties   names and values in a record
record      one record: encode, decode, check        view         a record for its reader
columns     many records at once                     placing      gives records their places
making      makes records from their parts           restore      a lane entry's restored record
keys        hashes for the index                     units        the content of a queue's files
lanes       levels and their queues                  levels       delays by level
events      events of consumer groups                ranges       ascending offsets
subjects    index words of a journal's records
attempts    failed deliveries of a message           policy       retry policies as text
receipts    names of deliveries                      ends         pending entries that were cancelled
group_file  the file of groups: its head, dead letters
timers      due times of records for any time        replacing    records that replace pending ones
compiled    the compiled loops
names, limits, errors
"""
