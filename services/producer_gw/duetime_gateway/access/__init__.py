"""Who calls, and what they may do: users, tokens, identity providers, grants."""
