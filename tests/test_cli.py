"""The command line as a process sees it: exit codes, streams, late imports, and errors in one sentence."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from localspec import __version__, cli
from localspec.errors import (
    DoesNotFitError,
    EngineError,
    LocalspecError,
    ModelFileError,
    OutsideError,
    PermissionDeniedError,
    UsageError,
)

Run = tuple[int, str, str]
posix_only = pytest.mark.skipif(os.name != "posix", reason="POSIX only")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Run]:
    def call(*argv: str) -> Run:
        code = cli.run(argv)
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Install a command `try` that does what it is given."""

    def install(body: Callable[[], Any]) -> None:
        module = types.ModuleType("localspec_test_command")
        module.command = click.command("try")(body)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(cli.COMMANDS, "try", (module.__name__, "For a test."))

    return install


def raises(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (LocalspecError("x"), 1),
            (ModelFileError("x"), 1),
            (EngineError("x"), 1),
            (UsageError("x"), 2),
            (OutsideError("x"), 3),
            (DoesNotFitError("x"), 4),
            (PermissionDeniedError("x"), 5),
        ],
    )
    def test_an_error_of_ours_is_a_sentence_and_its_code(
        self, error: LocalspecError, code: int, command: Any, run: Any
    ) -> None:
        error.hint = "do y"
        command(raises(error))
        assert run("try") == (code, "", "error: x\nhint: do y\n")

    def test_interrupted(self, command: Any, run: Any) -> None:
        command(raises(KeyboardInterrupt()))
        code, out, err = run("try")
        assert (code, out, err.strip()) == (130, "", "")

    @pytest.mark.parametrize("error", [RuntimeError("a bug"), EOFError("a bug"), RecursionError("a bug")])
    def test_a_bug_keeps_its_traceback_in_the_log(
        self, error: Exception, command: Any, run: Any, home: Path
    ) -> None:
        command(raises(error))
        code, out, err = run("try")
        log = home / "log" / "localspec.log"
        said = [f"error: unexpected {type(error).__name__}: a bug", f"hint: the traceback is in {log}"]
        assert (code, out, err.strip().splitlines()) == (1, "", said)
        assert "Traceback" in log.read_text()

    def test_a_bug_is_shown_when_the_log_cannot_be_written(self, command: Any, run: Any, home: Path) -> None:
        (home / "log").write_text("in the way")
        command(raises(RuntimeError("a bug")))
        code, _, err = run("try")
        assert code == 1
        assert "Traceback" in err and err.rstrip().endswith("error: unexpected RuntimeError: a bug")

    def test_an_exit_code_that_a_command_returns_is_the_processs(self, command: Any, run: Any) -> None:
        command(lambda: 4)
        assert run("try") == (4, "", "")


class TestUsage:
    @pytest.mark.parametrize(
        ("argv", "said"),
        [
            (["dmeo"], "error: unknown command `dmeo`\nhint: did you mean `demo`?\n"),
            (["paths", "--jsn"], "error: unknown option `--jsn`\nhint: did you mean `--json`?\n"),
            (["--verbose"], "error: unknown option `--verbose`\nhint: did you mean `--version`?\n"),
            (["paths", "x"], "error: got unexpected extra argument (x)\nhint: `localspec paths "),
            (["chat", "--k=99"], "error: bad value for `--k`: must be between 0 and 64\nhint: `localspec "),
            (["chat", "--k"], "error: option `--k` requires an argument\nhint: `localspec "),
            (["chat", "--method=ngrm"], "error: bad value for `--method`: must be one of auto, off, ngram, "),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )  # fmt: skip
    def test_a_wrong_command_line_names_what_is_wrong(self, argv: list[str], said: str, run: Any) -> None:
        code, out, err = run(*argv)
        assert (code, out) == (2, "")
        assert err.startswith(said)

    def test_help_lists_every_command(self, run: Any) -> None:
        for argv in (["--help"], ["-h"]):
            code, out, err = run(*argv)
            assert (code, err) == (0, "")
            assert all(f"  {name} " in out and text in out for name, (_, text) in cli.COMMANDS.items())

    @pytest.mark.parametrize("name", cli.COMMANDS)
    def test_each_command_has_help_of_its_own(self, name: str, run: Any) -> None:
        code, out, _ = run(name, "--help")
        assert code == 0
        assert out.startswith(f"Usage: localspec {name} ")
        assert importlib.import_module(cli.COMMANDS[name][0]).command.name == name

    def test_version(self, run: Any) -> None:
        assert run("--version") == (0, f"localspec, version {__version__}\n", "")

    def test_no_arguments_are_chat(self, monkeypatch: pytest.MonkeyPatch, command: Any, run: Any) -> None:
        command(lambda: print("chatting"))
        monkeypatch.setitem(cli.COMMANDS, "chat", cli.COMMANDS["try"])
        assert run() == (0, "chatting\n", "")


class TestPaths:
    def test_json_is_what_the_table_says(self, run: Any, home: Path) -> None:
        import json

        code, out, _ = run("paths", "--json")
        places = json.loads(out)
        assert code == 0
        assert places["log_file"] == str(home / "log" / "localspec.log")
        table = run("paths")[1]
        assert all(path in table for path in places.values())

    def test_it_makes_nothing(self, run: Any, home: Path) -> None:
        run("paths")
        assert list(home.iterdir()) == []


def process(*argv: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "localspec", *argv], text=True, **options)


class TestProcess:
    def test_python_m_works(self) -> None:
        with process("--version", stdout=subprocess.PIPE) as child:
            assert child.communicate()[0] == f"localspec, version {__version__}\n"
        assert child.returncode == 0

    @posix_only
    def test_a_reader_that_has_gone_ends_it_quietly(self) -> None:
        read, write = os.pipe()
        os.close(read)
        with process("paths", stdout=write, stderr=subprocess.PIPE) as child:
            os.close(write)
            assert child.communicate()[1] == ""
        assert child.returncode == 1

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="POSIX only")
    def test_a_full_disk_is_a_sentence(self) -> None:
        with (
            Path("/dev/full").open("w") as full,
            process("paths", stdout=full, stderr=subprocess.PIPE) as child,
        ):
            assert child.communicate()[1] == "error: cannot write to stdout: No space left on device\n"
        assert child.returncode == 1

    @posix_only
    def test_streams_that_are_closed_are_no_crash(self) -> None:
        with subprocess.Popen(
            ["sh", "-c", 'exec "$0" -m localspec paths <&- >&- 2>&-', sys.executable], stderr=subprocess.PIPE
        ) as child:
            assert child.communicate()[1] == b""
        assert child.returncode == 0

    @posix_only
    @pytest.mark.parametrize(
        ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
    )
    def test_a_signal_unwinds_so_that_the_terminal_is_given_back(self, number: int, code: int) -> None:
        program = (
            "import sys, time, types, click\n"
            "from localspec import cli\n"
            "def body():\n"
            "    try:\n"
            "        print('ready', flush=True)\n"
            "        time.sleep(30)\n"
            "    finally:\n"
            "        print('restored', flush=True)\n"
            "sys.modules['m'] = types.SimpleNamespace(command=click.command('try')(body))\n"
            "cli.COMMANDS['try'] = ('m', '')\n"
            "sys.argv = ['localspec', 'try']\n"
            "cli.main()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            child.send_signal(number)
            out, err = child.communicate(timeout=10)
        assert (child.returncode, out, err.strip()) == (code, "restored\n", "")
