"""The hub through the real huggingface_hub client: listings, links, refusals, ranges."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from localspec import hub
from localspec.errors import LocalspecError, OutsideError, PermissionDeniedError, UsageError
from localspec.transport import Unavailable
from tests.kit import downloads
from tests.kit.fakehub import GOOD_TOKEN, STRANGER_TOKEN, FakeHub, Fault, gguf

fake = downloads.fake
ROOT = Path(__file__).parent.parent
DATA = gguf(1_000_000)


def test_listing_has_size_digest_commit_and_gating(fake: FakeHub) -> None:
    commit = fake.push("o/r", {"sub/a.gguf": DATA, "README.md": b"hello"}, gated="manual")
    listing = hub.list_files("o/r")
    assert (listing.commit, listing.gated) == (commit, True)
    file, readme = listing.file("sub/a.gguf"), listing.file("README.md")
    assert (file.size, file.sha256, file.etag) == (len(DATA), fake.sha256(DATA), fake.sha256(DATA))
    assert (file.commit, file.gated) == (commit, True)
    assert readme.sha256 is None and readme.size == 5
    assert hub.file_metadata("o/r", "sub/a.gguf", commit) == file
    assert len(fake.seen) == 2, "one request per listing"


def test_an_unknown_file_names_the_nearest_one(fake: FakeHub) -> None:
    fake.push("o/r", {"model-Q4_K_M.gguf": DATA})
    with pytest.raises(UsageError) as caught:
        hub.file_metadata("o/r", "model-Q4_K_S.gguf")
    assert "model-Q4_K_S.gguf" in caught.value.message
    assert "model-Q4_K_M.gguf" in (caught.value.hint or "")


def test_link_leads_to_the_cdn_and_carries_no_token(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    commit = fake.push("o/r", {"a.gguf": DATA})
    metadata, link = hub.resolve("o/r", "a.gguf", "main")
    assert (metadata.commit, metadata.size, metadata.sha256) == (commit, len(DATA), fake.sha256(DATA))
    assert link.url.startswith(fake.cdn) and not link.headers
    assert fake.seen[-1].headers["authorization"] == f"Bearer {GOOD_TOKEN}", "the hub itself gets it"
    assert "Signature" not in link.site and "Signature" not in repr(link)


def test_link_to_the_hub_itself_keeps_the_token(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    fake.push("o/r", {"a.gguf": DATA}, private=True)
    fake.redirects = False
    _, link = hub.resolve("o/r", "a.gguf", "main")
    assert link.url.startswith(fake.endpoint)
    assert link.headers["authorization"] == f"Bearer {GOOD_TOKEN}"


def ask(repo: str = "o/r", path: str = "a.gguf", revision: str = "main") -> LocalspecError:
    with pytest.raises(LocalspecError) as caught:
        hub.resolve(repo, path, revision)
    assert caught.value.hint, "every refusal names the next step"
    return caught.value


def test_gated_missing_token_wrong_token_no_access_and_pending_differ(
    fake: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.push("o/r", {"a.gguf": DATA}, gated="manual")
    fake.push("o/asked", {"a.gguf": DATA}, gated="asked")
    refusals = [ask()]
    for token, repo in (("hf_wrong", "o/r"), (STRANGER_TOKEN, "o/r"), (STRANGER_TOKEN, "o/asked")):
        monkeypatch.setenv("HF_TOKEN", token)
        refusals.append(ask(repo))
    assert all(isinstance(error, PermissionDeniedError) and error.exit_code == 5 for error in refusals)
    words = (
        "no Hugging Face token is set",
        "rejects the Hugging Face token",
        "has no access",
        "not answered yet",
    )
    for error, expected in zip(refusals, words, strict=True):
        assert expected in error.message and "o/" in error.message
    assert len({error.message for error in refusals}) == 4


def test_missing_things_are_named(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.push("o/r", {"a.gguf": DATA})
    private = ask("o/none")
    assert isinstance(private, PermissionDeniedError) and "private" in private.message
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    for error, word in (
        (ask("o/none"), "no repository `o/none`"),
        (ask(path="b.gguf"), "no such file in `o/r`"),
        (ask(revision="f" * 40), "no such revision of `o/r`"),
    ):
        assert isinstance(error, UsageError) and word in error.message


@pytest.mark.parametrize("name", ["no-owner", "a/b/c", "../x/y", "o/..", "-/r"])
def test_what_is_no_repository_name_is_refused_without_a_request(fake: FakeHub, name: str) -> None:
    with pytest.raises(UsageError, match="not a repository name"):
        hub.check_name(name, "a.gguf")


@pytest.mark.parametrize("path", ["", "../a", "a/../../b", "/etc/passwd", "a\\b", "C:x", "a\0b", "."])
def test_paths_that_leave_the_repository_are_refused(path: str) -> None:
    with pytest.raises(UsageError, match="not a file name"):
        hub.check_name("o/r", path)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_passing_failures_are_outside_errors_with_the_wanted_pause(fake: FakeHub, status: int) -> None:
    fake.push("o/r", {"a.gguf": DATA})
    fake.inject(Fault("status", status=status, host="hub", retry_after=7))
    with pytest.raises(Unavailable, match=str(status)) as caught:
        hub.list_files("o/r")
    assert caught.value.exit_code == 3
    assert caught.value.retry_after_s == 7.0


def test_a_login_page_where_the_api_belongs_is_said(fake: FakeHub) -> None:
    fake.push("o/r", {"a.gguf": DATA})
    fake.inject(Fault("html", host="hub"))
    with pytest.raises(OutsideError, match="something else than the hub's API"):
        hub.list_files("o/r")


def test_no_connection_is_an_outside_error(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for ask_hub in (lambda: hub.list_files("o/r"), lambda: hub.resolve("o/r", "a.gguf", "main")):
        with pytest.raises(Unavailable, match=r"cannot reach `http://127\.0\.0\.1:9`"):
            ask_hub()


def test_offline_mode_asks_nobody(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.push("o/r", {"a.gguf": DATA})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for ask_hub in (lambda: hub.list_files("o/r"), lambda: hub.resolve("o/r", "a.gguf", "main")):
        with pytest.raises(OutsideError, match="HF_HUB_OFFLINE"):
            ask_hub()
    assert not fake.seen


def test_a_fresh_process_honours_the_variables_and_sends_no_telemetry(fake: FakeHub, tmp_path: Path) -> None:
    fake.push("o/r", {"a.gguf": DATA}, private=True)
    env = {k: v for k, v in os.environ.items() if k != "HF_HUB_DISABLE_TELEMETRY"}
    code = "from localspec import hub; print(hub.list_files('o/r').commit, hub.cache_dir())"
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={**env, **fake.environment(tmp_path / "hf", GOOD_TOKEN)},
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout.split()[1] == str(tmp_path / "hf" / "hub")
    assert [seen.path.partition("?")[0] for seen in fake.seen] == ["/api/models/o/r/revision/main"]


def test_the_fake_speaks_the_tree_api_to_the_real_client(fake: FakeHub) -> None:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    fake.push("o/r", {"sub/a.gguf": DATA, "README.md": b"hello"})
    tree = {
        entry.path: entry for entry in HfApi(endpoint=fake.endpoint).list_repo_tree("o/r", recursive=True)
    }
    assert set(tree) == {"sub/a.gguf", "README.md"}
    file = tree["sub/a.gguf"]
    assert isinstance(file, RepoFile) and file.lfs is not None
    assert (file.lfs.sha256, file.lfs.size) == (fake.sha256(DATA), len(DATA))


def test_ranges_are_fetched_once_and_kept_by_commit(fake: FakeHub, tmp_path: Path) -> None:
    commit = fake.push("o/r", {"a.gguf": DATA})
    source = hub.HttpRangeSource("o/r", "a.gguf", cache=tmp_path)
    assert source.size == len(DATA)
    assert source.read(0, 4) == b"GGUF"
    assert [seen.sent for seen in fake.requests("cdn")] == [hub.HttpRangeSource.FIRST]
    assert source.read(4, 1000) == DATA[4:1004]
    assert len(fake.requests("cdn")) == 1, "within the first 64 KiB"
    assert source.read(60_000, 200_000) == DATA[60_000:260_000]
    assert source.read(len(DATA) - 10, 100) == DATA[-10:]
    assert source.read(len(DATA), 5) == b""
    count = len(fake.seen)
    again = hub.HttpRangeSource("o/r", "a.gguf", commit, cache=tmp_path)
    assert again.read(0, 260_000) == DATA[:260_000]
    assert len(fake.seen) == count, "a pinned commit that was read before causes no request"


def test_a_read_far_beyond_the_prefix_fetches_only_itself(
    fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub.HttpRangeSource, "STEP", 1000)
    fake.push("o/r", {"a.gguf": DATA})
    source = hub.HttpRangeSource("o/r", "a.gguf", cache=tmp_path)
    assert source.read(900_000, 10) == DATA[900_000:900_010]
    assert [seen.sent for seen in fake.requests("cdn")] == [10]


def test_a_new_commit_is_seen_and_the_network_may_be_gone_later(
    fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known fault 97: what was read before needs no network."""
    fake.push("o/r", {"a.gguf": DATA})
    assert hub.HttpRangeSource("o/r", "a.gguf", cache=tmp_path).read(4, 4) == DATA[4:8]
    newer = gguf(500_000, seed=2)
    fake.push("o/r", {"a.gguf": newer})
    source = hub.HttpRangeSource("o/r", "a.gguf", cache=tmp_path)
    assert source.read(4, 4) == newer[4:8]
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    offline = hub.HttpRangeSource("o/r", "a.gguf", cache=tmp_path)
    assert (offline.size, offline.read(4, 100)) == (len(newer), newer[4:104])
    with pytest.raises(OutsideError):
        offline.read(300_000, 100_000)


def test_a_cache_that_cannot_be_used_costs_requests_not_answers(fake: FakeHub, tmp_path: Path) -> None:
    fake.push("o/r", {"a.gguf": DATA})
    blocked = tmp_path / "file"
    blocked.write_bytes(b"where the folder should be")
    source = hub.HttpRangeSource("o/r", "a.gguf", cache=blocked)
    assert source.read(0, 100_000) == DATA[:100_000]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", status=403),
        Fault("status", status=503),
        Fault("cut", at=100),
        Fault("short", at=5000),
        Fault("ignore_range", times=2),
    ],
    ids=["expired", "503", "cut", "short", "range ignored"],
)
def test_one_failure_of_a_range_is_overcome(fake: FakeHub, tmp_path: Path, fault: Fault) -> None:
    fake.push("o/r", {"a.gguf": DATA})
    source = hub.HttpRangeSource("o/r", "a.gguf", cache=tmp_path)
    source.read(0, 10)
    fake.inject(fault)
    assert source.read(70_000, 30_000) == DATA[70_000:100_000]


def test_ranges_of_a_web_page_are_refused(fake: FakeHub, tmp_path: Path) -> None:
    """Known fault 94: an HTML page instead of the model."""
    fake.push("o/r", {"a.gguf": DATA})
    fake.inject(Fault("html"))
    with pytest.raises(OutsideError, match="something else"):
        hub.HttpRangeSource("o/r", "a.gguf", cache=tmp_path).read(0, 10)
    assert not list(tmp_path.rglob("*.head"))
