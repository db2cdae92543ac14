"""Long and hostile replies: drawing one more token stays cheap, and the text stays exact."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.engine.events import Done, Event, Prefill, Token
from localspec.tui.collecting import no_full_collections
from tests.kit.scripted import ScriptedSession, summary
from tests.tui.kit import Chat, chatting


def tokens(pieces: list[str]) -> list[Event]:
    return [
        Prefill(1, 1, 0),
        *(Token(i, piece, "content", i % 3 > 0, "draft", i // 3) for i, piece in enumerate(pieces)),
        Done("stop", summary(len(pieces))),
    ]


def fence_tokens(count: int) -> list[str]:
    line = ["    value", "_", "1", " = ", "compute", "(", "x", ", ", "y)", "\n"]
    return ["```python\n", *(line[i % len(line)] for i in range(count - 2)), "```"]


async def timed(chat: Chat) -> list[float]:
    """Send a message and return the processor seconds of each flush, repaint included."""
    costs: list[float] = []
    writer = chat.screen.writer
    flush = writer._flush

    async def measured() -> None:
        start = time.thread_time()
        await flush()
        chat.screen.call_after_refresh(lambda: costs.append(time.thread_time() - start))

    writer._flush = measured  # type: ignore[method-assign]
    chat.screen.prompt.insert("go")
    await chat.pilot.press("enter")
    await chat.wait(lambda: chat.screen.conversation.turns, "the question")
    await chat.wait(lambda: not writer.busy and not chat.screen.controller.busy, "the end", 120)
    await chat.pilot.pause()
    return costs


@pytest.mark.parametrize(("count", "marks"), [(8000, False), (3000, True)])
async def test_a_flush_costs_the_same_at_the_end_of_a_long_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, marks: bool
) -> None:
    monkeypatch.setattr("localspec.tui.writing.FLUSH_EVENTS", 100)
    monkeypatch.setattr("localspec.tui.pacing.BASE_S", 0.0)
    monkeypatch.setattr("localspec.tui.pacing.LONGEST_S", 0.0)  # as fast as it is accepted
    pieces = fence_tokens(count)

    session = ScriptedSession([tokens(pieces)])
    with no_full_collections():  # as a chat runs, and a suite holds more than one
        async with chatting(tmp_path, lambda: session, size=(80, 24)) as chat:
            if marks:
                await chat.pilot.press("f4")
            costs = await timed(chat)
            parts = list(chat.screen.query(".part").results())
            drawn = sum(part.render().plain.count("compute") for part in parts)
            assert max(part.render().plain.count("\n") for part in parts) <= 60
    assert chat.screen.conversation.turns[-1].content == "".join(pieces)
    assert drawn == "".join(pieces).count("compute")
    assert len(costs) >= count // 110
    fifth = len(costs) // 5  # some flushes are repainted at once and cost four times as much
    assert statistics.mean(costs[-fifth:]) <= 2 * statistics.mean(costs[fifth : 2 * fifth])


async def test_full_garbage_collections_wait_for_the_end_of_a_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One costs 60 ms and more, and the text would stand still for as long."""
    monkeypatch.setattr("localspec.tui.writing.SETTLE_S", 0.05)
    session = ScriptedSession([tokens(fence_tokens(6000))])
    before = gc.get_threshold()
    busy: list[bool] = []
    with no_full_collections():
        async with chatting(tmp_path, lambda: session, size=(80, 24)) as chat:

            def noted(phase: str, info: dict[str, int]) -> None:
                if phase == "start" and info["generation"] == 2:
                    busy.append(chat.screen.writer.busy)

            gc.callbacks.append(noted)
            try:
                await timed(chat)
                await chat.wait(lambda: busy, "a collection after the reply")
            finally:
                gc.callbacks.remove(noted)
    assert busy == [False]
    assert gc.get_threshold() == before and not gc.get_freeze_count()


HOSTILE = {
    "markup": "[/] [red]x[/red] [@click=app.quit]press[/] [link=file:///etc]x[/link] [[a]]",
    "escapes": "\x1b[2J\x1b]0;title\x07\x1b]52;c;aGk=\x07\x1b[31mred \x9b31m \x08\x7f",
    "bidi": "user\u202e gpj.exe\u2066x\u2069 \u200bzero\u2060width\ufeff",
    "unclosed": "text\n\n```python\nx = [1\n\n**not bold",
    "nested": "````md\n```\ninner\n```\n````\n~~~\n<script>\n~~~\n- ```sh\n  ls\n  ```",
    "emoji": "👩\u200d👩\u200d👧\u200d👦 🇩🇪 e\u0301 한국어 ｆｕｌｌ a\u0336",
    "html": "<div><think>hidden?</think></div> &lt;b&gt; <!-- comment -->",
    "tables": "| a | b |\n|---|\n| x |\n|||||\n\n| [red] | `|` |\n|---|---|\n| \x1b[1m | ** |",
    "links": "[a](javascript:alert) [b]: http://x\n[b] ![i](data:text/html,x) <ftp://y>",
    "lines": "a\r\nb\rc\x0bd\x0ce\u2028f\x85g",
    "wide": "x" * 5000 + " " + "漢" * 3000,
    "deep": "> " * 60 + "quote\n" + "- " * 60 + "item\n" + "#" * 9 + " x",
    "empty fence": "```\n```\n```",
}


def cuts(text: str, size: int) -> Iterator[str]:
    for start in range(0, len(text), size):
        yield text[start : start + size]


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_text_is_exact_harmless_and_drawn(tmp_path: Path, name: str) -> None:
    """Known fault 49 (emoji split over tokens) and crashes on bracket markup of several terminal apps."""
    text = HOSTILE[name]
    typed = "\n".join(text.splitlines())  # the prompt knows one kind of line break

    def harmless(chat: Chat) -> bool:
        strips = chat.app.screen._compositor.render_strips(chat.app.size)
        drawn = "".join(segment.text for strip in strips for segment in strip)
        return not set(drawn) & set("\x1b\x07\x08\x9b\u202e\u2066\u200b\r")

    events = tokens(list(cuts(text, 1 if len(text) < 500 else 97)))
    async with chatting(tmp_path, lambda: ScriptedSession([events]), size=(60, 20)) as chat:
        await chat.ask(text)
        assert harmless(chat)
        await chat.pilot.press("f4")
        await chat.ask(text)
        assert harmless(chat)
        await chat.pilot.press("f4", "ctrl+y")
        await chat.wait(lambda: chat.app.clipboard == text, "the exact copy")
        conversation = chat.screen.conversation
        assert [turn.content for turn in conversation.turns] == [typed, text] * 2
        assert conversation.chat_id is not None
        stored = chat.screen.setup.store.load(conversation.chat_id)
        assert [turn.content for turn in stored.turns] == [typed, text] * 2


async def test_a_chat_of_many_long_turns_opens_at_once(tmp_path: Path) -> None:
    from localspec.store import ChatStore, Turn

    store = ChatStore(tmp_path / "chats.db")
    chat_id = store.create(title="long", pair="demo")
    for i in range(200):
        role = "assistant" if i % 2 else "user"
        store.put_turn(chat_id, i, Turn(role, f"turn {i}\n\n" + "- item with **words**\n" * 40))  # type: ignore[arg-type]

    start = time.thread_time()
    async with chatting(tmp_path, store=store, resume=chat_id, size=(80, 24)) as chat:
        await chat.wait_text("item with words")
        assert time.thread_time() - start < 3.0
        assert len(chat.screen.query(".turn")) == 12
