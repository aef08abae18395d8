"""Users, tokens, identity providers and grants: authenticates callers and checks their rights."""
