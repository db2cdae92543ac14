"""A queue that takes turns: clients first, conversations of a client second, then arrival."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Two nested round robins, so that nobody waits for more than one request of each other client.

    A key keeps its place in the ring while it has items; each turn takes one item and moves the key to
    the end. Not thread-safe: the owner holds a lock.
    """

    def __init__(self) -> None:
        self._clients: OrderedDict[str, OrderedDict[str, deque[T]]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, client: str, conversation: str, item: T) -> None:
        conversations = self._clients.setdefault(client, OrderedDict())
        conversations.setdefault(conversation, deque()).append(item)
        self._size += 1

    def pop(self) -> T | None:
        """The next item in turn, or None when nothing waits."""
        if not self._clients:
            return None
        client, conversations = next(iter(self._clients.items()))
        conversation, items = next(iter(conversations.items()))
        item = items.popleft()
        self._size -= 1
        if items:
            conversations.move_to_end(conversation)
        else:
            del conversations[conversation]
        if conversations:
            self._clients.move_to_end(client)
        else:
            del self._clients[client]
        return item

    def remove(self, client: str, conversation: str, item: T) -> bool:
        """Take `item` out of line; False when it does not wait any more."""
        conversations = self._clients.get(client, OrderedDict())
        items = conversations.get(conversation)
        if items is None or item not in items:
            return False
        items.remove(item)
        self._size -= 1
        if not items:
            del conversations[conversation]
        if not conversations:
            del self._clients[client]
        return True

    def items(self) -> list[T]:
        """Everything that waits, in no particular order."""
        return [
            item
            for conversations in self._clients.values()
            for items in conversations.values()
            for item in items
        ]
