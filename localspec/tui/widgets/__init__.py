"""Widgets of the chat, one per file. They show what they are given and post what the user does."""
