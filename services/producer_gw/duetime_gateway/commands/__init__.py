"""`duetime users` and `duetime grants`: who may call gateways, and what they may do. Plug-ins of the `duetime` command.

They work on the metadata database, and not by a gateway: the first user is made where there is none who could ask, no
token travels but to the terminal that asked for it, and a gateway has no call by which rights could be taken.
"""
