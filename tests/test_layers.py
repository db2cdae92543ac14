"""The layers hold: by contract over the source, and by what a fresh interpreter has loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("llama_cpp", "textual", "huggingface_hub", "numpy", "gguf", "jinja2", "rich", "httpx2", "fastapi")


def loaded(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running `code`."""
    ask = f"{code}\nimport sys; print('|'.join({{name.partition('.')[0] for name in sys.modules}}))"
    answer = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return set(answer.stdout.splitlines()[-1].split("|"))


def run_cli(*argv: str) -> str:
    return f"from localspec.cli import run\ncode = run({list(argv)!r})\nassert code == 0, code"


@pytest.mark.parametrize(
    "code",
    [
        "import localspec",
        run_cli("--help"),
        run_cli("--version"),
        run_cli("chat", "--help"),
        run_cli("paths", "--json"),
    ],
    ids=["import", "--help", "--version", "chat --help", "paths"],
)
def test_light_commands_load_nothing_heavy(code: str) -> None:
    assert loaded(code).isdisjoint(HEAVY)


def test_a_chat_that_streams_never_loads_the_screen() -> None:
    code = "from localspec.cli import run\nassert run(['chat', 'no-such-pair', '-p', 'x', '--plain']) == 2"
    assert loaded(code).isdisjoint({"textual", "llama_cpp", "huggingface_hub"})


def test_the_probe_sees_what_is_loaded() -> None:
    assert "rich" in loaded("import rich.console")


def test_help_does_not_even_load_the_commands() -> None:
    code = (
        run_cli("--help")
        + "\nimport sys; assert not any(m.startswith('localspec.engine') for m in sys.modules)"
    )
    assert "localspec" in loaded(code)


def test_modules_import_only_downward() -> None:
    pytest.importorskip("importlinter", reason="import-linter is not installed")
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    lint = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert lint.returncode == 0, lint.stdout[-4000:]
