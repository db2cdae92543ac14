"""The OpenAI wire format, in both directions: bodies become requests, events become replies.

Knows nothing of HTTP: the server and the batch runner both use it.
"""
