"""Generated from proto/duetime/v1."""
