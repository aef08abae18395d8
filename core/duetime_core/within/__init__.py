"""Calls between nodes of one process, through gRPC's interface without sockets.

    Channel ──▶ Place of the address ──▶ Within of the server ──▶ its handlers, including the border around them
                                 requests ──▶ Flow ──▶ context.read()
                                  answers ◀── Flow ◀── context.write(), or the returned one

Messages are passed as bytes, as on a connection: both sides serialize as usual, so that neither sees the other's
objects change (docs/adr/0046). Everything here belongs to one event loop.
"""
