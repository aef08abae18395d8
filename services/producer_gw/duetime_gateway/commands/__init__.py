"""`duetime users` and `duetime grants`: plug-ins of the `duetime` command that manage users and their rights.

They work on the metadata database instead of a gateway: the first user can be created while there is none, tokens
travel only to the requesting terminal, and gateways have no call to change rights.
"""
