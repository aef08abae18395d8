"""Consumer groups: how far each has got, what it has leased, and how that survives.

    state      what is outstanding, and every change of it; pure
    journal    the changes as events for the store's journal (duetime_format.events); replay: and back
    snapshot   the whole state as one file
    groups     the registry: validates, changes, journals; what the gRPC calls do
    fetch      messages for one Receive
    receiving  Receive and its waiters
    memory     what is remembered of leases that ended
    persistence the snapshot, beside each checkpoint; loading: the state after a start
    offsets    what groups commit: config/consumerOffset.json
    calls      the gRPC calls; admin: those of operators; dead_letters: those of the dead-letter queues
    unread     what of the log's front no group has read

Theory. Of each queue that a group receives from, its *place* knows a frontier and the offsets below it that are
outstanding; everything else below it is done. A change is made in memory at once and is an event in the journal, which
is a queue of the commit log (topic DT_GROUPS): callers are answered when the events are durable. See docs/adr/0014.
"""
