"""Sending: messages gathered into requests, sent again with the same ids until they are stored or refused."""
