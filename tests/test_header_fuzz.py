"""Mutated headers: an error sentence or a value, in bounded time; never another exception."""

from __future__ import annotations

import random
import time

import pytest

from localspec.errors import ModelFileError
from localspec.header import draft_kind, facts_from_header, read_sources
from localspec.pairing import verdict
from tests.kit.ggufs import syn
from tests.test_header import Counting

NAMES = ("syn", "syn-hyb", "syn-mtp", "syn-swa", "eagle3", "medusa")
INTERESTING = (0, 1, 0x7F, 0x80, 0xFF)


def header_bytes(name: str) -> bytes:
    """A tiny model whose tensor data is cut to what the table needs; mutations hit the header only."""
    return syn(name).read_bytes()


def mutate(data: bytes, rng: random.Random, limit: int) -> bytes:
    """Flip, overwrite, insert, delete or truncate at a few places of the first `limit` bytes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        at, how = rng.randrange(min(limit, len(out))), rng.randrange(5)
        if how == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            out[at] = rng.choice(INTERESTING)
        elif how == 2:
            out[at : at + 8] = rng.choice(INTERESTING).to_bytes(1, "little") * 8
        elif how == 3:
            del out[at : at + rng.randrange(1, 16)]
        elif rng.random() < 0.2:
            del out[at:]
            return bytes(out)
        else:
            out[at:at] = rng.randbytes(rng.randrange(1, 16))
    return bytes(out)


def header_end(data: bytes) -> int:
    """Where the tensor data begins."""
    return min(tensor.offset for tensor in read_sources([Counting(data)], "seed").tensors)


@pytest.mark.parametrize("name", NAMES)
def test_mutated_headers_give_a_sentence_or_a_value(name: str, request: pytest.FixtureRequest) -> None:
    """Known kind of fault: a broken or hostile file ends in a traceback, a hang or all memory."""
    count = 10_000 if request.config.getoption("--soak", default=False) else 600
    data = header_bytes(name)
    whole = read_sources([Counting(data)], name)
    end = header_end(data)
    rng = random.Random(f"header {name}")
    refused = 0
    for number in range(count // len(NAMES)):
        broken = mutate(data, rng, end)
        began = time.perf_counter()
        try:
            header = read_sources([Counting(broken)], "fuzz.gguf", only_first=rng.random() < 0.3)
            facts = facts_from_header(header)
            assert len(facts.layers) <= 512
            draft_kind(header)
            for pair in ((whole, header), (header, whole)):
                assert verdict(*pair).reasons
        except ModelFileError as error:
            refused += 1
            assert error.message and "\n" not in error.message
        assert time.perf_counter() - began < 2.0, f"mutation {number} took too long"
    assert refused > count // len(NAMES) // 10
