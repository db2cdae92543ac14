"""Recorded drafts, hardware costs, and the replay of a policy over them."""
