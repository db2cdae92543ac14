"""A session in a child process: `WorkerSession` is what the chat screen and the server hold.

llama.cpp aborts its process on some faults and blocks for long in others. In a child both are harmless:
the parent lives on, says what happened, and can end or restart the child at once.
"""

from localspec.worker.session import WorkerSession

__all__ = ["WorkerSession"]
