"""Quotas of users and topics, shared by all gateways.

limits     the limits of a quota, and the error of an exceeded one
bucket     the tokens of one rate
shares     this gateway's share of a limit
meters     the use of one user or topic here
quotas     all meters: decides about requests, streams and connections
book       quotas and use in the database
pending    counts of pending messages by topic
keeper     the loop that refreshes all this
"""
