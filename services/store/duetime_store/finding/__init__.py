"""Finding messages: by id, by key, and the history of each.

index         RocketMQ's index files
linking       makes their entries
indexer       builds them
finder        messages by id and key
search        records of many pending messages at once
trace         the life of a message
journals      records of a journal about given places
event_search  events of single messages in the journal of groups
end_search    times of cancels of pending messages
"""
