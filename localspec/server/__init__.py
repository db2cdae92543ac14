"""OpenAI-compatible server over one loaded pair (extra `serve`)."""
