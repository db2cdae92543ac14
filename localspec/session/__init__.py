"""A loaded pair that answers requests: models, conversation cache, template and the event stream."""

from localspec.session.session import Session, open_session

__all__ = ["Session", "open_session"]
