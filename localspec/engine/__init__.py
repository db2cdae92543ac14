"""The speculative engine: token ids and logits; nothing of files, hub or screens."""
