"""Chats and measurements on disk: nothing is lost, newer files are refused, processes share them."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.errors import LocalspecError, UsageError
from localspec.store import (
    ChatStore,
    MeasurementKey,
    Measurements,
    Span,
    Turn,
    chats,
    measurements,
    search,
)
from localspec.store.database import Upgrade, open_database
from localspec.store.transfer import from_json, to_json, to_markdown
from localspec.store.upgrades import CHATS

ROOT = Path(__file__).parents[1]
SPANS = (Span("reasoning", False, 0, 4), Span("content", True, 0, 6), Span("content", False, 1, 3))


@pytest.fixture(autouse=True)
def _close_all(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opened: list[sqlite3.Connection] = []

    def remember(path: Path | None, upgrades: Sequence[Upgrade]) -> sqlite3.Connection:
        opened.append(open_database(path, upgrades))
        return opened[-1]

    for module in (chats, measurements):
        monkeypatch.setattr(module, "open_database", remember)
    yield
    for connection in opened:
        connection.close()


@pytest.fixture
def store(tmp_path: Path) -> ChatStore:
    return ChatStore(tmp_path / "data" / "chats.db")


def talk(store: ChatStore, *texts: str, title: str = "A chat") -> int:
    """A chat whose turns alternate between user and assistant."""
    chat = store.create(title=title, pair="demo")
    for position, text in enumerate(texts):
        store.put_turn(chat, position, Turn("assistant" if position % 2 else "user", text))
    return chat


def test_a_chat_comes_back_as_it_was_stored(store: ChatStore) -> None:
    chat = store.create(
        title="  Two\nlines ", pair="demo", system="Be brief", settings={"sampling": {"seed": 1}}
    )
    turn = Turn("assistant", "nine chars", "hmm.", "cancelled", "41 tok/s", SPANS, created_at=5.0)
    store.put_turn(chat, 0, Turn("user", "hello\0 \N{ESCAPE}[31m \N{PILE OF POO}"))
    store.put_turn(chat, 1, turn)
    loaded = ChatStore(store.path).load(chat)
    assert (loaded.title, loaded.pair, loaded.system) == ("Two lines", "demo", "Be brief")
    assert loaded.settings == {"sampling": {"seed": 1}}
    assert loaded.turns[0].content == "hello\0 \N{ESCAPE}[31m \N{PILE OF POO}"
    assert loaded.turns[0].created_at > 0
    assert loaded.turns[1] == turn


def test_a_turn_is_replaced_in_place_and_later_ones_are_dropped(store: ChatStore) -> None:
    chat = talk(store, "a", "b", "c", "d")
    store.put_turn(chat, 1, Turn("assistant", "better"))
    store.truncate(chat, 2)
    assert [turn.content for turn in store.load(chat).turns] == ["a", "better"]


def test_rename_settings_and_delete(store: ChatStore) -> None:
    keep, drop = talk(store, "a"), talk(store, "b")
    store.rename(keep, "x" * 200)
    assert len(store.load(keep).title) == 60
    store.set_system(keep, "new")
    store.set_settings(keep, {"max_tokens": 5})
    assert (store.load(keep).system, store.load(keep).settings) == ("new", {"max_tokens": 5})
    store.delete(drop)
    assert [row.id for row in store.find()] == [keep]
    for wrong in (lambda: store.load(drop), lambda: store.delete(drop), lambda: store.rename(drop, "x")):
        with pytest.raises(UsageError, match=f"there is no chat {drop}"):
            wrong()
    with pytest.raises(UsageError, match="title cannot be empty"):
        store.rename(keep, "  ")


def test_the_last_changed_chat_comes_first(tmp_path: Path) -> None:
    now = [1.0]
    store = ChatStore(tmp_path / "chats.db", clock=lambda: now[0])
    first, second = talk(store, "a"), talk(store, "b")
    assert [row.id for row in store.find()] == [second, first]
    now[0] = 2.0
    store.put_turn(first, 1, Turn("assistant", "answer"))
    rows = store.find()
    assert [(row.id, row.turns) for row in rows] == [(first, 2), (second, 1)]


@pytest.fixture(params=["fts5", "like"])
def searching(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChatStore:
    if request.param == "like":
        monkeypatch.setattr(search, "has_fts5", lambda _: False)
    return ChatStore(tmp_path / "chats.db")


def test_search_finds_parts_of_words_code_and_scripts_without_spaces(searching: ChatStore) -> None:
    quick = talk(searching, "a quicksort in Rust", "fn partition(v: &mut [i32]) -> usize", title="Sorting")
    haiku = talk(searching, "俳句を書いてください", '100% "quoted" OR (x_y)', title="Poem")

    def found(query: str) -> set[int]:
        return {row.id for row in searching.find(query)}

    assert found("QUICK") == {quick}
    assert found("partition usize") == {quick}
    assert found("quick usize") == set()  # no turn holds both
    assert found("&mut [i32])") == {quick}
    assert found("書いて") == {haiku}
    assert found("俳") == {haiku}
    assert found('"quoted"') == {haiku}
    assert found("100%") == {haiku} and found("0%d") == set()
    assert found("x_y") == {haiku} and found("xzy") == set()
    assert found("sortin") == {quick}
    assert found("poem") == {haiku}
    assert found("   ") == {quick, haiku}
    searching.put_turn(quick, 1, Turn("assistant", "replaced"))
    assert found("usize") == set() and found("replaced") == {quick}
    searching.delete(haiku)
    assert found("quoted") == set()


def test_the_index_is_rebuilt_after_a_build_without_fts5_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chats.db"
    ChatStore(path).close()
    with monkeypatch.context() as without:
        without.setattr(search, "has_fts5", lambda _: False)
        poor = ChatStore(path)
        chat = talk(poor, "written without an index")
        poor.close()
    assert [row.id for row in ChatStore(path).find("index")] == [chat]


@given(st.text(max_size=30))
def test_no_search_text_breaks_the_query(query: str) -> None:
    store = ChatStore(None)
    talk(store, "something")
    store.find(query)
    store.close()


def test_recent_prompts_are_different_and_oldest_first(store: ChatStore) -> None:
    talk(store, "one", "reply", "two", "reply", "one")
    assert store.recent_prompts() == ("two", "one")
    assert store.recent_prompts(1) == ("one",)


def test_incognito_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = ChatStore(None)
    assert store.incognito
    assert store.load(talk(store, "secret")).turns[0].content == "secret"
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_an_old_database_is_upgraded_and_keeps_its_chats(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    old = sqlite3.connect(path)
    old.executescript((ROOT / "tests/data/chats_schema_1.sql").read_text())
    old.close()
    store = ChatStore(path)
    chat = store.load(1)
    assert (chat.title, chat.system, chat.settings) == ("Haiku", "Be brief", {"max_tokens": 64})
    assert [turn.content for turn in chat.turns] == ["Write a haiku", "An old silent pond"]
    assert chat.turns[1].ending == "cancelled" and chat.turns[1].spans == ()
    assert [row.id for row in store.find("silent")] == [1]
    store.put_turn(1, 2, Turn("assistant", "x", spans=SPANS))
    assert store.load(1).turns[2].spans == SPANS
    check = sqlite3.connect(path)
    assert check.execute("PRAGMA user_version").fetchone() == (len(CHATS),)
    check.close()


def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    newer = sqlite3.connect(path)
    newer.execute("CREATE TABLE future (x)")
    newer.execute("PRAGMA user_version = 99")
    newer.commit()
    newer.close()
    before = path.read_bytes()
    with pytest.raises(LocalspecError, match=f"schema 99, this localspec knows {len(CHATS)}") as refusal:
        ChatStore(path)
    assert refusal.value.hint is not None and "upgrade localspec" in refusal.value.hint
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    path.write_text("this is no database, only text that is long enough to be read as a header" * 20)
    with pytest.raises(LocalspecError, match=r"chats\.db cannot be opened"):
        ChatStore(path)
    (tmp_path / "folder").write_text("a file in the way")
    with pytest.raises(LocalspecError, match="cannot be opened"):
        ChatStore(tmp_path / "folder" / "chats.db")


def test_a_failed_upgrade_changes_nothing(tmp_path: Path) -> None:
    def breaks(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE half (x)")
        raise sqlite3.OperationalError("disk full")

    path = tmp_path / "x.db"
    with pytest.raises(LocalspecError, match="disk full"):
        open_database(path, [breaks])
    check = sqlite3.connect(path)
    assert check.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    check.close()


def test_two_processes_write_one_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    script = textwrap.dedent(f"""
        from pathlib import Path
        from localspec.store import ChatStore, Turn
        store = ChatStore(Path({str(path)!r}))  # both create and upgrade it
        chat = store.create(title="t", pair="p")
        for position in range(60):
            store.put_turn(chat, position, Turn("user", f"text {{position}}"))
        store.close()
    """)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    writers = [subprocess.Popen([sys.executable, "-c", script], env=environment, cwd=ROOT) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert [row.turns for row in ChatStore(path).find("text")] == [60, 60, 60]


def test_a_lock_that_is_never_released_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.store.database.BUSY_TIMEOUT_S", 0.1)
    path = tmp_path / "chats.db"
    store = ChatStore(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LocalspecError, match="cannot be written: database is locked"):
        talk(store, "x")
    other.execute("ROLLBACK")
    other.close()
    talk(store, "x")


def test_threads_share_one_store(store: ChatStore) -> None:
    chat = store.create(title="t", pair="p")

    def write(start: int) -> None:
        for position in range(start, start + 20):
            store.put_turn(chat, position, Turn("user", str(position)))

    threads = [threading.Thread(target=write, args=(start,)) for start in (0, 20, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [turn.content for turn in store.load(chat).turns] == [str(n) for n in range(60)]


def test_markdown_holds_the_texts_unchanged(store: ChatStore) -> None:
    chat = store.create(title="Code", pair="demo", system="Be brief")
    code = "```python\nprint('[/red]')\n```"
    store.put_turn(chat, 0, Turn("user", "show"))
    store.put_turn(chat, 1, Turn("assistant", code, "let me think", "cancelled", spans=SPANS))
    text = to_markdown(store.load(chat))
    assert text.startswith("# Code\n")
    for part in (
        "## System\n\nBe brief\n",
        "## You\n\nshow\n",
        "## Model\n\n<details>",
        code,
        "*(stopped)*",
    ):
        assert part in text
    assert "let me think" in text


def test_a_lone_surrogate_does_not_break_the_store(store: ChatStore) -> None:
    chat = talk(store, "half \ud83d", title="\ud83d")
    assert store.load(chat).turns[0].content == "half \ufffd\ufffd\ufffd"


def test_json_comes_back_into_another_store(store: ChatStore) -> None:
    first = talk(store, "a", "b", title="One")
    second = store.create(title="Two", pair="other", system="s", settings={"max_tokens": 3})
    store.put_turn(second, 0, Turn("assistant", "x", "r", "error", "out of memory", created_at=7.0))
    text = to_json([store.load(first), store.load(second)])
    other = ChatStore(None)
    ids = from_json(text, other)
    assert [other.load(id_).title for id_ in ids] == ["One", "Two"]
    copied = other.load(ids[1])
    assert (copied.pair, copied.system, copied.settings) == ("other", "s", {"max_tokens": 3})
    assert copied.turns == store.load(second).turns
    assert [turn.content for turn in other.load(ids[0]).turns] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "this is no JSON: .* in line 1"),
        ("[]", "`format` is not `localspec-chats`"),
        ('{"format": "localspec-chats", "version": 2}', "has version 2, known is 1"),
        ('{"format": "localspec-chats", "version": 1}', "`chats` of this export is no list"),
        ('{"format": "localspec-chats", "version": 1, "chats": [3]}', "chat 1 of this export is no object"),
        (
            '{"format": "localspec-chats", "version": 1, "chats": [{"turns": [{"role": "tool"}]}]}',
            "chat 1 .* neither `user` nor `assistant`",
        ),
        (
            '{"format": "localspec-chats", "version": 1, "chats": [{"title": 1, "turns": []}]}',
            "`title` in chat 1 of this export is no text",
        ),
        (
            '{"format": "localspec-chats", "version": 1, "chats": '
            '[{"turns": [{"role": "user", "content": "x", "ending": "bang"}]}]}',
            "unknown ending `bang`",
        ),
    ],
)
def test_a_wrong_import_is_explained_and_adds_nothing(text: str, message: str) -> None:
    store = ChatStore(None)
    with pytest.raises(UsageError, match=message):
        from_json(text, store)
    assert store.find() == []


KEY = MeasurementKey("t", "d", "cuda:0", "b1", 8, ("f16", "f16"))


def test_measurements_are_kept_per_configuration(tmp_path: Path) -> None:
    path = tmp_path / "measurements.db"
    first = Measurements(path, clock=lambda: 9.0)
    first.put(KEY, "verify_costs", {"1": 0.02, "4": 0.03})
    first.put(KEY, "verify_costs", {"1": 0.01})
    first.put(KEY, "baseline", 41.5)
    other = MeasurementKey("t", "d", "cuda:0", "b1", 8, ("q8_0", "q8_0"))
    assert first.get(other, "verify_costs") is None
    first.close()
    again = Measurements(path)
    assert again.get(KEY, "verify_costs") == {"1": 0.01}
    assert again.items("baseline") == [(KEY, 41.5, 9.0)]
    assert again.forget(KEY, "baseline") == 1
    assert again.get(KEY, "baseline") is None
    again.put(other, "x", 1)
    assert again.forget(KEY) == 1 and again.forget(KEY) == 0
    assert again.get(other, "x") == 1


def test_a_number_that_is_none_is_never_stored() -> None:
    memory = Measurements(None)
    with pytest.raises(ValueError, match="JSON"):
        memory.put(KEY, "baseline", float("nan"))
