"""Pending messages: cancelled, rescheduled and replaced before they fall due; counted and listed.

targets      which lane entry a reference names: by its place, else by its id
cancelling   Cancel
replacing    Replace: reschedules, and one pending message for each topic and key
keys         the pending messages that were sent with `replace`, by topic and key
retries      EndRetries: copies that wait for their next attempt are due now, or never
surveyor     tends the table of counts
countkeeper  saves it at checkpoints
seconds      counts a lane by second
backlog      Backlog: how many there are, by due time
listing      ListPending: which there are, in order of due time
"""
