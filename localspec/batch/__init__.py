"""Many prompts from a file, every answer in a file: resumable, ordered, on a pair or on an endpoint."""
