"""Draw long replies in the chat and measure what a person would feel.

Each kind of text is fed as fast as the screen takes it, and again at a fixed rate. Reported: the longest
time in which the event loop did nothing else (a key pressed then waits that long), the median cost of a flush
early and late in the reply, the time from Esc to the repainted status line in mid-stream, and the time from
starting the interpreter to the first paint. Bars: first paint 1 s; at the fixed rate stall 150 ms; last
decile of the flushes at most twice the second one; Esc 50 ms (median).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from textual.events import Key  # noqa: E402

from localspec.engine.events import Done, Event, Prefill, Round, Token  # noqa: E402
from localspec.tui.collecting import no_full_collections  # noqa: E402
from localspec.tui.widgets.status_bar import StatusBar  # noqa: E402
from tests.kit.scripted import ScriptedSession, summary  # noqa: E402
from tests.tui.kit import chatting  # noqa: E402

STALL_BAR_S = 0.150
GROWTH_BAR = 2.0
STOP_BAR_S = 0.050
PAINT_BAR_S = 1.0
FIRST_PAINT = """
import asyncio, sys, tempfile
from pathlib import Path
from tests.tui.kit import chatting
async def work():
    with tempfile.TemporaryDirectory() as folder:
        async with chatting(Path(folder), wait_ready=False) as chat:
            while "Message" not in chat.text():
                await asyncio.sleep(0.001)
            print("painted", flush=True)
asyncio.run(work())
"""
TICK_S = 0.002


@dataclass(frozen=True)
class Outcome:
    """One run; seconds."""

    text: str
    rate_tps: float
    """0 = as fast as accepted."""
    tokens: int
    wall_s: float
    flushes: int
    early_s: float
    """Median cost of a flush in the second decile."""
    late_s: float
    """The same in the last decile."""
    stall_s: float


def fence() -> Iterator[str]:
    yield "```python\n"
    line = 0
    while True:
        yield from ("    value", f"_{line}", " = ", "compute", "(", f"{line}", ", ", "other", ")", "\n")
        line += 1


def prose() -> Iterator[str]:
    while True:
        for i in range(90):
            yield f" *word{i}*" if i % 9 == 0 else f" word{i}"
        yield "\n\n"


def listing() -> Iterator[str]:
    item = 0
    while True:
        yield from (
            f"{item + 1}. ",
            "**Point**",
            " with",
            " `code`",
            " and",
            " some",
            " more",
            " words",
            "\n",
        )
        item += 1


TEXTS = {"fence": fence, "prose": prose, "list": listing}


def script(text: str, tokens: int) -> list[Event]:
    source = TEXTS[text]()
    events: list[Event] = [Prefill(1, 1, 0)]
    for i in range(tokens):
        events.append(Token(i, next(source), "content", i % 3 > 0, "draft", i // 3))
        if i % 3 == 2:
            events.append(Round("draft", 2, 2, 2, 3, i, 0.001, 0.02, 0.0, 3))
    return [*events, Done("length", summary(tokens, rounds=tokens // 3))]


async def measure(text: str, tokens: int, rate_tps: float, size: tuple[int, int]) -> Outcome:
    events = script(text, tokens)
    session = ScriptedSession([events], delay_s=0.75 / rate_tps if rate_tps else 0.0)
    with tempfile.TemporaryDirectory() as folder:
        async with chatting(Path(folder), lambda: session, size=size) as chat:
            writer = chat.screen.writer
            costs: list[float] = []
            flush = writer._flush

            async def timed() -> None:
                start = time.perf_counter()
                await flush()
                costs.append(time.perf_counter() - start)

            writer._flush = timed  # type: ignore[method-assign]
            stall = 0.0

            async def watch() -> None:
                nonlocal stall
                while True:
                    before = time.perf_counter()
                    await asyncio.sleep(TICK_S)
                    stall = max(stall, time.perf_counter() - before - TICK_S)

            chat.screen.prompt.insert("go")
            watcher = asyncio.create_task(watch())
            start = time.perf_counter()
            await chat.pilot.press("enter")
            while not chat.screen.conversation.turns or chat.screen.controller.busy or writer.busy:
                await asyncio.sleep(0.02)
            wall = time.perf_counter() - start
            watcher.cancel()
            assert chat.screen.conversation.turns[-1].content == "".join(
                event.text for event in events if isinstance(event, Token)
            )
    tenth = max(1, len(costs) // 10)
    early = statistics.median(costs[tenth : 2 * tenth] or costs)
    return Outcome(text, rate_tps, tokens, wall, len(costs), early, statistics.median(costs[-tenth:]), stall)


async def stop_s(size: tuple[int, int]) -> float:
    """Seconds from the key's arrival to the repainted status line, in the middle of a fence."""
    session = ScriptedSession([script("fence", 3000)], delay_s=0.01)
    with tempfile.TemporaryDirectory() as folder:
        async with chatting(Path(folder), lambda: session, size=size) as chat:
            chat.screen.prompt.insert("go")
            await chat.pilot.press("enter")
            await asyncio.sleep(2.0)
            status = chat.screen.query_one(StatusBar)
            painted = asyncio.Event()

            def repainted() -> None:
                chat.screen.call_after_refresh(painted.set)

            chat.screen.watch(status, "status", repainted, init=False)
            start = time.perf_counter()
            chat.app.post_message(Key("escape", "\x1b"))
            while chat.screen.controller.state == "replying":
                await asyncio.sleep(0)
            painted.clear()
            await painted.wait()
            return time.perf_counter() - start


def first_paint_s() -> float:
    """Seconds from starting the interpreter to the first paint; the best of three."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", FIRST_PAINT], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--rate", type=float, default=60.0, help="tokens per second of the second run")
    parser.add_argument("--rate-tokens", type=int, default=1800)
    parser.add_argument("--texts", nargs="*", default=list(TEXTS), choices=list(TEXTS))
    parser.add_argument("--size", default="100x40")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    width, _, height = given.size.partition("x")
    size = (int(width), int(height))
    with no_full_collections():  # as `run_chat` does
        return report(given, size)


def report(given: argparse.Namespace, size: tuple[int, int]) -> int:
    """Measure and print; returns the exit code."""
    paint_s = first_paint_s()
    print(f"first paint {paint_s:.2f} s (process and teardown included)", file=sys.stderr)
    stops = sorted(asyncio.run(stop_s(size)) for _ in range(5))
    print(f"Esc to repaint {', '.join(f'{1e3 * s:.0f}' for s in stops)} ms", file=sys.stderr)
    outcomes = []
    for text in given.texts:
        for tokens, rate in ((given.tokens, 0.0), (given.rate_tokens, given.rate)):
            outcome = asyncio.run(measure(text, tokens, rate, size))
            outcomes.append(outcome)
            pace = f"{rate:g} tok/s" if rate else "at once"
            print(
                f"{text:6} {pace:>9} {tokens:6} tokens {outcome.wall_s:6.1f} s {outcome.flushes:5} flushes "
                f"early {1e3 * outcome.early_s:6.1f} ms late {1e3 * outcome.late_s:6.1f} ms "
                f"stall {1e3 * outcome.stall_s:6.1f} ms",
                file=sys.stderr,
            )
    if given.json:
        streams = [asdict(outcome) for outcome in outcomes]
        print(json.dumps({"first_paint_s": paint_s, "stop_s": stops, "streams": streams}))
    paced = [outcome for outcome in outcomes if outcome.rate_tps]
    grew = [o for o in paced if o.late_s > GROWTH_BAR * o.early_s]
    stalled = [o for o in paced if o.stall_s > STALL_BAR_S]
    for outcome in grew:
        print(f"{outcome.text}: late flushes cost more than {GROWTH_BAR:g} times early ones", file=sys.stderr)
    for outcome in stalled:
        print(f"{outcome.text}: stalled longer than {1e3 * STALL_BAR_S:.0f} ms", file=sys.stderr)
    slow_stop = stops[len(stops) // 2] > STOP_BAR_S
    if slow_stop:
        print(f"Esc took longer than {1e3 * STOP_BAR_S:.0f} ms", file=sys.stderr)
    if paint_s > PAINT_BAR_S:
        print(f"the first paint took longer than {PAINT_BAR_S:g} s", file=sys.stderr)
    return 1 if grew or stalled or slow_stop or paint_s > PAINT_BAR_S else 0


if __name__ == "__main__":
    sys.exit(main())
