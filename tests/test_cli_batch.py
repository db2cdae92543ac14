"""`localspec batch` as its user runs it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec import cli
from localspec.batch.defaults import body_fields
from tests.kit.serving import Served, served
from tests.test_batch import line, read

Run = tuple[int, str, str]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Run]:
    def call(*argv: object) -> Run:
        code = cli.run(["batch", *map(str, argv)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("one\ntwo\nthree\n")
    return path


def test_a_file_through_an_endpoint(
    run: Callable[..., Run], server: Served, prompts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    command = (prompts, "-o", out, "--endpoint", f"{server.url}/v1", "--concurrency", 2, "--max-tokens", 4)
    code, stdout, err = run(*command)
    assert (code, stdout) == (0, "")
    assert err.startswith("3 of 3 answered · 12 tokens in ")
    assert [r["custom_id"] for r in read(out)] == ["line-1", "line-2", "line-3"]
    assert [r["response"]["body"]["usage"]["completion_tokens"] for r in read(out)] == [4, 4, 4]

    code, stdout, err = run(*command, "--json")
    assert code == 0 and "3 kept from an earlier run" in err
    assert json.loads(stdout) | {"seconds": 0} == {
        "requests": 3, "answered": 3, "failed": 0, "kept": 3, "prompt_tokens": 0, "completion_tokens": 0,
        "drafted": 0, "tested": 0, "accepted": 0, "given_up": [], "seconds": 0,
    }  # fmt: skip


def test_stdin_to_stdout(run: Callable[..., Run], server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("grüße\n".encode())))
    code, stdout, _ = run("-", "--endpoint", server.url, "-q")
    (result,) = map(json.loads, stdout.splitlines())
    assert (code, result["response"]["status_code"]) == (0, 200)


def test_a_failed_line_is_a_result_and_exit_code_1(
    run: Callable[..., Run], server: Served, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join([line("a", "hi"), line("b", "!refuse"), line("c", "x", temperature=-1)]))
    code, stdout, err = run(source, "--endpoint", server.url)
    assert code == 1 and "1 of 3 answered · 2 failed" in err
    assert [json.loads(text)["response"]["status_code"] for text in stdout.splitlines()] == [200, 400, 400]


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["missing.jsonl", "--endpoint", "http://x"], 1, "cannot read `missing.jsonl`: No such file"),
        (["IN", "--model", "m"], 2, "`--model` needs `--endpoint`"),
        (
            ["IN", "--endpoint", "http://x", "--pair", "demo"],
            2,
            "`--pair` and `--endpoint` exclude each other",
        ),
        (["IN", "--endpoint", "http://x", "--ctx", "512"], 2, "`--ctx` has no effect on an endpoint"),
        (["IN", "--endpoint", "x"], 2, "`x` is no URL"),
        (["IN", "--json", "--endpoint", "http://x"], 2, "`--json` needs `-o`"),
        (["IN", "--pair", "no-such-pair"], 2, "no-such-pair"),
        (["IN"], 2, "no pair was given"),
        (["IN", "--endpoint", "http://x", "--grammar", "a", "--json-schema", "{}"], 2, "exclude each other"),
    ],
)
def test_wrong_commands(
    run: Callable[..., Run], prompts: Path, argv: list[str], code: int, message: str
) -> None:
    got, stdout, err = run(*[prompts if word == "IN" else word for word in argv])
    assert (got, stdout) == (code, "")
    assert message in err


def test_malformed_jsonl_stops_before_anything_is_asked(run: Callable[..., Run], tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(line("a", "hi") + "\n{oops\n")
    code, _, err = run(source, "-o", tmp_path / "out", "--endpoint", "http://127.0.0.1:9")
    assert code == 2 and f"`{source}` line 2 is not JSON" in err
    assert not (tmp_path / "out").exists()


def test_options_become_body_fields() -> None:
    fields = body_fields(
        {"temperature": 0.5, "dry_sequence_breakers": ("a",), "json_schema": '{"type": "object"}',
         "logit_bias": ((5, float("-inf")), (6, 1.0)), "grammar": None},
        {"method": "ngram", "k": None},
        {"max_tokens": 5, "stop": ("x",), "ignore_eog": True, "template_args": (("a", 1),), "system": "s"},
    )  # fmt: skip
    assert fields == {
        "temperature": 0.5,
        "dry_sequence_breakers": ["a"],
        "logit_bias": {"5": -100.0, "6": 1.0},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "reply", "schema": {"type": "object"}},
        },
        "speculation": {"method": "ngram"},
        "max_tokens": 5,
        "stop": ["x"],
        "ignore_eos": True,
        "chat_template_kwargs": {"a": 1},
    }


@pytest.mark.real_model
def test_the_demo_pair_answers_and_goes_on_after_ctrl_c(prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    command: list[Any] = [
        sys.executable, "-m", "localspec", "batch", prompts, "-o", out, "--pair", "demo", "--threads", 1,
        "--ctx", 512, "--temperature", 0, "--max-tokens", 8,
    ]  # fmt: skip
    first = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (out.exists() and out.read_text().count("\n")) and time.monotonic() < deadline:
        time.sleep(0.01)
    first.send_signal(signal.SIGINT)
    _, err = first.communicate(timeout=30)
    kept = len(read(out))
    if first.returncode != 0:  # it may just have finished
        assert first.returncode == 130
        assert "give the same command again" in err
    second = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
    assert second.returncode == 0, second.stderr
    assert f"{kept} kept" in second.stderr
    bodies = [r["response"]["body"] for r in read(out)]
    assert [b["usage"]["completion_tokens"] for b in bodies] == [8, 8, 8]
    assert all(b["choices"][0]["speculation"]["rounds"] >= 1 for b in bodies)
    assert {b["model"] for b in bodies} == {"demo"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.txt", "out.jsonl"]


def test_ctrl_c_is_130(prompts: Path, server: Served, tmp_path: Path) -> None:
    prompts.write_text("!slow a\n" * 50)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "localspec",
            "batch",
            str(prompts),
            "--endpoint",
            server.url,
            "--concurrency",
            "1",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["custom_id"] == "line-1"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
