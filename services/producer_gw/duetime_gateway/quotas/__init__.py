"""Quotas of users and topics, shared by all gateways.

limits     what may be set, and what refuses it
bucket     the tokens of one rate
shares     what of a limit one of several gateways has
meters     the use of one user or topic here
quotas     all meters: decides about requests, streams and connections
book       the database's side
pending    how many messages of a topic wait
keeper     the loop that keeps all this fresh
"""
