"""Finding messages: by id, by key, and what happened to each.

index         RocketMQ's index files
linking       makes their entries
indexer       builds them
finder        messages by id and key
search        records of many pending messages at once
trace         the life of a message
journals      records of a journal about some places
event_search  events of single messages in the journal of groups
end_search    when a pending message was cancelled
"""
