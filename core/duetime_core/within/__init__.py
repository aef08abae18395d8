"""Calls between nodes of one process: by gRPC's interface, without its sockets.

    Channel ──▶ Place of the address ──▶ Within of the server ──▶ its handlers, the border around them included
                                 requests ──▶ Flow ──▶ context.read()
                                  answers ◀── Flow ◀── context.write(), or the one that is returned

What passes is bytes, as on a connection: both sides serialize as they do elsewhere, so that neither sees the other's
objects change (docs/adr/0046). Everything here belongs to one event loop.
"""
