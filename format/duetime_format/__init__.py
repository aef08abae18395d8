"""The book of bytes: what stands on disk and on the wire, and what it means. Imports nothing else of DueTime."""
