"""Result lines in the shape of an OpenAI Batch output file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from localspec.api.faults import Fault
from localspec.batch.lines import Item

ID_PREFIX = "batch_req_"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one item."""

    item: Item
    status: int
    body: dict[str, Any]

    @property
    def ok(self) -> bool:
        return self.status == 200

    def line(self) -> str:
        """The output line, without its end; the id holds the item's key, by which a later run knows it."""
        value = {
            "id": ID_PREFIX + self.item.key,
            "custom_id": self.item.custom_id,
            "response": {"status_code": self.status, "request_id": f"req_{self.item.key}", "body": self.body},
            "error": None,
        }
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def failed(item: Item, fault: Fault) -> Result:
    return Result(item, fault.status, fault.reply().model_dump())


def parse_line(line: str) -> tuple[str, bool] | None:
    """The key and success of an output line, None when it is no such line (or half of one)."""
    try:
        value = json.loads(line)
        name, status = value["id"], value["response"]["status_code"]
    except (ValueError, LookupError, TypeError):
        return None
    if not isinstance(name, str) or not name.startswith(ID_PREFIX):
        return None
    return name.removeprefix(ID_PREFIX), status == 200
