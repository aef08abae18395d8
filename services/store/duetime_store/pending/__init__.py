"""Pending messages: cancelled, rescheduled and replaced before they fall due; counted and listed.

targets      the lane entry of a reference: by its place, else by its id
cancelling   Cancel
replacing    Replace: reschedules, and one pending message for each topic and key
keys         pending messages sent with `replace`, by topic and key
retries      EndRetries: waiting retries are made due now, or discarded
surveyor     tends the table of counts
seconds      counts a lane by second
backlog      Backlog: the number of messages, by due time
listing      ListPending: the messages, in order of due time
schedule_counts    CountSchedules: the schedules by topic
"""
