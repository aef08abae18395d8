"""What producers use: drafts admitted, given queues, encoded as records and put."""
