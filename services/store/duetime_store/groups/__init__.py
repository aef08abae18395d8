"""Consumer groups: their progress and leases, and how both survive a restart.

    state      outstanding messages, and every change of them; pure
    journal    the changes as events for the store's journal (duetime_format.events); replay: the reverse
    snapshot   the whole state as one file
    groups     the registry: validates, changes, journals
    fetch      messages for one Receive
    receiving  Receive and its waiters
    memory     ended leases, remembered for a while
    persistence the snapshot, beside each checkpoint; loading: the state after a start
    offsets    committed offsets: records, and config/consumerOffset.json at checkpoints
    calls      the gRPC calls; admin: those of operators; dead_letters: those of the dead-letter queues
    pauses     groups that receive nothing for a while; permits: groups with a rate
    keys       groups that receive few messages of a key at a time; gates: all three
    lapsing    messages that have expired
    retries    copies in lanes that wait for their next attempt: counted, found, ended
    unread     messages at the log's front that a group has not read

Theory. For each queue that a group receives from, its *place* has a frontier and the outstanding offsets below it;
everything else below it is done. A change is made in memory at once and is an event in the journal, a queue of the
commit log (topic DT_GROUPS): callers are answered when the events are durable. See docs/adr/0014.
"""
