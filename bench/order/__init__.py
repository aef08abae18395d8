"""Ways to keep pending messages in the order of their due times, measured beside each other."""
