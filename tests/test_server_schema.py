"""The server against its own OpenAPI document: generated requests, right and wrong, with a fixed seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from tests.kit.serving import Served, served

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
ENOUGH = 20
EXAMPLES = 40


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_replies_are_those_that_the_document_promises(server: Served, mode: GenerationMode) -> None:
    """No 5xx, no status or shape that is not documented, wrong bodies refused, right ones answered."""
    document = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    answered: Counter[str] = Counter()
    operations = [found.ok() for found in document.get_all_operations()]
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and operation.method.upper() == "GET":
            continue  # nothing in it can be wrong

        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(generation_mode=mode))
        def check(case: Any) -> None:
            response = case.call()
            answered[case.operation.label] += response.status_code == 200
            case.validate_response(response, checks=CHECKS)

        check()
    if mode is GenerationMode.POSITIVE:
        assert {operation.label for operation in operations} == set(answered)
        for path in ("chat/completions", "completions", "responses"):
            assert answered[f"POST /v1/{path}"] >= ENOUGH
