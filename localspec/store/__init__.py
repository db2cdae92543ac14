"""What outlives a run: chats with full-text search, and measurements of pairs on this machine."""

from localspec.store.chats import Chat, ChatStore, ChatSummary, Span, Turn
from localspec.store.measurements import MeasurementKey, Measurements

__all__ = ["Chat", "ChatStore", "ChatSummary", "MeasurementKey", "Measurements", "Span", "Turn"]
