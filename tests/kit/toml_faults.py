"""Random damage to a TOML text, for tests that feed mutated files to a reader."""

from __future__ import annotations

import random

TOKENS = (b'"', b"[", b"]", b"{", b"=", b"\n", b"#", b"'''", b".", b"\\u00", b"-", b"nan")
BOMBS = (b"[" * 3000, b"a." * 3000, b"9" * 5000, b"{x=" * 2000, b"\x00", b"\xff\xfe")


def mutated(text: str, rng: random.Random) -> bytes:
    """The text with one to four faults: a byte, a cut, a token, a copy, a bomb, a line, the rest gone."""
    raw = bytearray(text.encode())
    for _ in range(rng.randint(1, 4)):
        if not raw:
            break
        at = rng.randrange(len(raw))
        fault = rng.randrange(7)
        if fault == 0:
            raw[at] = rng.randrange(256)
        elif fault == 1:
            del raw[at : at + rng.randint(1, 40)]
        elif fault == 2:
            raw[at:at] = rng.choice(TOKENS)
        elif fault == 3:
            other = rng.randrange(len(raw))
            raw[at:at] = raw[other : other + rng.randint(1, 200)]
        elif fault == 4:
            raw[at:at] = rng.choice(BOMBS)
        elif fault == 5:
            lines = raw.split(b"\n")
            line = rng.randrange(len(lines))
            lines[line] = rng.choice([lines[rng.randrange(len(lines))], b"", b"x = " + lines[line]])
            raw = bytearray(b"\n".join(lines))
        else:
            del raw[at:]
    return bytes(raw)
