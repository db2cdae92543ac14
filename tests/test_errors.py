"""Errors carry their exit code and next step, also across a pipe."""

from __future__ import annotations

import pickle

import pytest

from localspec import errors
from localspec.errors import LocalspecError, nearest, unknown

CODES = {
    "LocalspecError": 1, "UsageError": 2, "ModelFileError": 1, "PairingError": 1, "EngineError": 1,
    "OutsideError": 3, "DoesNotFitError": 4, "PermissionDeniedError": 5,
}  # fmt: skip


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_each_error_has_its_documented_exit_code(name: str, code: int) -> None:
    assert getattr(errors, name)("x").exit_code == code


def test_every_error_class_is_in_the_table_of_exit_codes() -> None:
    kinds = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, LocalspecError)
    }
    assert all(
        any(kind.exit_code == CODES[b.__name__] for b in kind.__mro__ if b.__name__ in CODES)
        for kind in kinds
    )


@pytest.mark.parametrize("name", CODES)
def test_an_error_survives_the_worker_pipe(name: str) -> None:
    sent = getattr(errors, name)("the draft is `x`", hint="do `y`")
    got = pickle.loads(pickle.dumps(sent))
    assert type(got) is type(sent)
    assert (got.message, got.hint, str(got)) == ("the draft is `x`", "do `y`", "the draft is `x`")


@pytest.mark.parametrize(
    ("word", "close"), [("chta", "chat"), ("dmeo", "demo"), ("pathes", "paths"), ("xyzzy", None)]
)
def test_nearest(word: str, close: str | None) -> None:
    assert nearest(word, ["chat", "demo", "paths"]) == close


def test_unknown_hints_at_the_nearest_name_or_lists_all() -> None:
    near, far, none = (
        unknown("pair", "dem", ["demo", "x"]),
        unknown("pair", "q", ["b", "a"]),
        unknown("pair", "q", []),
    )
    assert (near.message, near.hint, near.exit_code) == ("unknown pair `dem`", "did you mean `demo`?", 2)
    assert far.hint == "known: a, b"
    assert none.hint is None
