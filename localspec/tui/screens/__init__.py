"""Screens of the chat, one per file. A screen owns layout and keys; work is done by the controller."""
