"""The book of bytes: what stands on disk and on the wire, and what it means. Imports nothing else of DueTime.

layout      where the parts of a record lie          properties   names and values in a record
record      one record: encode, decode, check        view         a record as its reader sees it
columns     many records at once                     placing      giving them their places
making      records of their parts                   restore      a lane entry's restored record
keys        what the index hashes                    units        what a queue's files hold
lanes       levels and their queues                  levels       delays by level
events      what groups did                          ranges       ascending offsets
attempts    failed deliveries of a message
receipts    what names a delivery                    names, limits, errors
"""
