"""Finding: messages by key or id, the history of one message, and the dead letters of a group."""
