"""Every engine option fills exactly the setting it declares, and says what is wrong with a bad value."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from localspec import cli
from localspec.cli.options import (
    DEFAULTS,
    LOAD,
    PAIR,
    REQUEST,
    SAMPLING,
    SLOTS,
    SPECULATION,
    Asked,
    Option,
    SettingCommand,
    SettingOption,
    takes,
)
from localspec.engine.settings import LoadSettings, Message, Request, SamplingSettings, SpeculationSettings
from localspec.errors import LocalspecError, UsageError

GROUPS = (PAIR, LOAD, SLOTS, SAMPLING, SPECULATION, REQUEST)
OPTIONS = [option for group in GROUPS for option in group]

SAMPLES: dict[str, tuple[str, Any]] = {
    "--target": ("a.gguf", Path("a.gguf")),
    "--draft": ("b.gguf", Path("b.gguf")),
    "--force": ("", True),
    "--ctx": ("300", 300),
    "--gpu-layers": ("7", 7),
    "--draft-gpu-layers": ("8", 8),
    "--kv": ("q8_0,f16", ("q8_0", "f16")),
    "--draft-kv": ("q4_0", ("q4_0", "q4_0")),
    "--no-mmap": ("", False),
    "--mlock": ("", True),
    "--threads": ("3", 3),
    "--batch": ("99", 99),
    "--ubatch": ("33", 33),
    "--flash-attn": ("off", "off"),
    "--device": ("CUDA1", "CUDA1"),
    "--draft-device": ("CPU", "CPU"),
    "--tensor-split": ("3,1", (3.0, 1.0)),
    "--n-cpu-moe": ("4", 4),
    "--slots": ("3", 3),
    "--rpc": ("127.0.0.1:50052,[::1]:1", ("127.0.0.1:50052", "[::1]:1")),
    "--temperature": ("0.3", 0.3),
    "--top-k": ("5", 5),
    "--top-p": ("0.5", 0.5),
    "--min-p": ("0.2", 0.2),
    "--typical": ("0.6", 0.6),
    "--repeat-last-n": ("-1", -1),
    "--repeat-penalty": ("1.1", 1.1),
    "--presence-penalty": ("-0.5", -0.5),
    "--frequency-penalty": ("0.5", 0.5),
    "--dry-multiplier": ("0.8", 0.8),
    "--dry-base": ("2", 2.0),
    "--dry-allowed-length": ("3", 3),
    "--dry-penalty-last-n": ("77", 77),
    "--dry-sequence-breaker": ("<x>", ("<x>",)),
    "--xtc-probability": ("0.4", 0.4),
    "--xtc-threshold": ("0.2", 0.2),
    "--logit-bias": ("15043-1.5", ((15043, -1.5),)),
    "--grammar": ('root ::= "a"', 'root ::= "a"'),
    "--grammar-file": ("{file}", '{"type": "object"}'),
    "--json-schema": ('{"type": "object"}', '{"type": "object"}'),
    "--json-schema-file": ("{file}", '{"type": "object"}'),
    "--seed": ("42", 42),
    "--method": ("ngram", "ngram"),
    "--k": ("5", 5),
    "--verify": ("rejection", "rejection"),
    "--p-min": ("0.3", 0.3),
    "--require-spec": ("", True),
    "--no-tuned": ("", False),
    "--system": ("Be brief.", (Message("system", "Be brief."),)),
    "--max-tokens": ("12", 12),
    "--stop": ("END", ("END",)),
    "--ignore-eos": ("", True),
    "--template-arg": ("enable_thinking=false", (("enable_thinking", False),)),
}
"""Flag → (text on the command line, value it must become); never the default."""

RECORD_NAMES = {"request.system": "request.messages"}


def asked(*argv: str) -> Asked:
    """What a command with every option receives."""

    @click.command(cls=SettingCommand)
    @takes(*GROUPS)
    def command(asked: Asked) -> Asked:
        return asked

    result: Asked = command.main(list(argv), standalone_mode=False)
    return result


def flat(prefix: str, value: object) -> dict[str, object]:
    assert is_dataclass(value)
    return {f"{prefix}.{field.name}": getattr(value, field.name) for field in fields(value)}


def record(given: Asked) -> dict[str, object]:
    """The run record, field by field."""
    request = given.request()
    rows = flat("load", given.load()) | flat("sampling", request.sampling)
    rows |= flat("speculation", request.speculation) | flat("request", request)
    rows |= {"pair.target": given.target, "pair.draft": given.draft, "pair.force": given.force}
    return {
        name: value for name, value in rows.items() if name not in ("request.sampling", "request.speculation")
    }


def changed(after: Mapping[str, object]) -> dict[str, object]:
    before = record(asked())
    return {name: value for name, value in after.items() if value != before[name]}


def argv_of(option: Option, folder: Path) -> list[str]:
    file = folder / "text"
    file.write_text('{"type": "object"}')
    text = SAMPLES[option.flags[0]][0].replace("{file}", str(file))
    return [option.flags[0]] if option.means is not None else [f"{option.flags[0]}={text}"]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.flags[0])
def test_each_option_changes_the_field_it_fills_and_no_other(option: Option, tmp_path: Path) -> None:
    after = record(asked(*argv_of(option, tmp_path)))
    fills = RECORD_NAMES.get(option.fills, option.fills)
    assert changed(after) == {fills: SAMPLES[option.flags[0]][1]}


def test_every_setting_of_the_engine_has_an_option_or_a_reason() -> None:
    filled = {RECORD_NAMES.get(option.fills, option.fills) for option in OPTIONS}
    without = set(record(asked())) - filled
    assert without == {
        "load.k_max",  # follows --k
        "request.prompt",  # the API's, for text without a template
        "request.logprobs",
        "request.prediction",
        "request.tools",
        "request.continue_last",
        "request.cache_key",
    }


EVERYWHERE = {"json", "quiet", "config_file"}
"""Options that `face` and `takes` consume; their effect is tested in test_cli_chat and above."""


def leaves() -> list[tuple[str, click.Command]]:
    """Every command, those of groups by themselves."""
    found: list[tuple[str, click.Command]] = []
    for name, (module, _) in cli.COMMANDS.items():
        command = importlib.import_module(module).command
        if isinstance(command, click.Group):
            found += [(f"{name} {inner}", child) for inner, child in command.commands.items()]
        else:
            found.append((name, command))
    return found


@pytest.mark.parametrize(("name", "command"), leaves(), ids=[name for name, _ in leaves()])
def test_every_other_option_of_a_command_is_read_by_it(name: str, command: click.Command) -> None:
    own = {p.name for p in command.params if not isinstance(p, SettingOption)} - EVERYWHERE
    assert command.callback is not None
    function = inspect.unwrap(command.callback)
    [tree] = ast.parse(inspect.getsource(function)).body
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    passed_on = {
        param.name
        for param in inspect.signature(function).parameters.values()
        if param.kind is param.VAR_KEYWORD
    }
    unread = own - read
    assert not unread or passed_on & read, f"{name} never reads {sorted(unread)}"


def test_flags_are_unique_and_aliases_fill_the_same_field() -> None:
    flags = [flag for option in OPTIONS for flag in option.flags]
    assert len(flags) == len(set(flags))
    assert asked("--temp", "0.1") == asked("--temperature", "0.1")
    assert asked("--typical-p", "0.1") == asked("--typical", "0.1")


def test_nothing_asked_is_the_defaults() -> None:
    assert asked().given == {}
    assert asked().load() == LoadSettings()
    assert asked().request() == Request()


CONFIG = """
temperature = 0.1
top_k = 7
method = "ngram"
k = 3
ctx = 512
threads = 2
max_tokens = 9
grammar = 'root ::= "x"'
"""


def test_flag_beats_environment_beats_file_beats_default(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(home, CONFIG)
    monkeypatch.setenv("LOCALSPEC_TOP_K", "8")
    monkeypatch.setenv("LOCALSPEC_CTX", "1024")
    request, load = asked("--temperature", "0.8", "--k", "auto").request(), asked("--ctx", "auto").load()
    assert request.sampling == SamplingSettings(temperature=0.8, top_k=8, grammar='root ::= "x"')
    assert request.speculation == SpeculationSettings(method="ngram", k=None)
    assert request.max_tokens == 9
    assert load == LoadSettings(threads=2)
    assert asked().load() == LoadSettings(n_ctx=1024, threads=2)


def test_a_constraint_given_replaces_the_configured_one_of_the_other_kind(home: Path) -> None:
    write_config(home, CONFIG)
    sampling = asked("--json-schema", "{}").request().sampling
    assert (sampling.grammar, sampling.json_schema) == (None, "{}")


def test_another_settings_file(home: Path, tmp_path: Path) -> None:
    write_config(home, CONFIG)
    (tmp_path / "other.toml").write_text("k = 5")
    assert asked("--config", str(tmp_path / "other.toml")).request() == Request(
        speculation=SpeculationSettings(k=5)
    )
    with pytest.raises(UsageError, match="does not exist"):
        asked("--config", str(tmp_path / "none.toml"))


def write_config(home: Path, text: str) -> None:
    (home / "config").mkdir()
    (home / "config" / "config.toml").write_text(text)


def test_a_configured_fixed_draft_is_known_at_load_too(home: Path) -> None:
    write_config(home, "k = 33")
    assert asked().load().k_max == 33


def test_a_long_fixed_draft_is_known_when_the_rows_are_sized() -> None:
    assert asked("--k", "40").load().k_max == 40
    assert asked("--k", "4").load().k_max == LoadSettings().k_max


def test_repeated_options_add_up() -> None:
    request = asked("--stop", "a", "--stop", "b", "--logit-bias", "1-inf", "--logit-bias", "2+0.5").request()
    assert request.stop == ("a", "b")
    assert request.sampling.logit_bias == ((1, float("-inf")), (2, 0.5))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=1", 1),
        ("a=true", True),
        ("a=x=y", "x=y"),
        ("a=", ""),
        ('a={"b": [1]}', {"b": [1]}),
        ("a=null", None),
    ],
)
def test_template_arguments_are_json_where_they_read_as_json(text: str, value: object) -> None:
    assert asked("--template-arg", text).request().template_args == (("a", value),)


BAD = [
    ("--k=65", "must be between 0 and 64"),
    ("--k=few", 'must be "auto" or a whole number'),
    ("--k=1.5", "must be a whole number"),
    ("--k=-1", "must be between 0 and 64"),
    ("--ctx=0", "must be between 1 and"),
    ("--top-p=1.5", "must be between 0 and 1"),
    ("--top-p=nan", "must be between 0 and 1"),
    ("--temperature=-1", "must be 0 or more"),
    ("--temperature=inf", "must be 0 or more"),
    ("--temperature=hot", "must be a number"),
    ("--presence-penalty=nan", "must be a finite number"),
    ("--seed=4294967296", "must be between 0 and 4294967295"),
    ("--tensor-split=0,0", "has only shares of 0"),
    ("--tensor-split=1,x", "must be shares per device"),
    ("--rpc=localhost", "has `localhost`, which is no host:port"),
    ("--rpc=a:1,b:70000", "has `b:70000`, which is no host:port"),
    ("--logit-bias=5", "has `5`, which is neither ID+X"),
    ("--logit-bias=5+inf", "has `5+inf`, which is neither ID+X"),
    ("--template-arg=x", "has `x`, which is not K=V"),
    ("--template-arg==x", "has `=x`, which is not K=V"),
    ("--json-schema={", "must be the text of a JSON object"),
    ("--json-schema=[]", "must be the text of a JSON object"),
    ("--kv=f16,f16,f16", "names more than K and V"),
    ("--kv=q8", "(did you mean `q8_0`?)"),
    ("--method=ngrams", "(did you mean `ngram`?)"),
    ("--verify=matching", "(did you mean `match`?)"),
    ("--flash-attn=yes", "must be one of auto, on, off"),
    ("--stop=", "none empty"),
    ("--system=", "must be text, not empty"),
]


@pytest.mark.parametrize(("option", "said"), BAD, ids=[option for option, _ in BAD])
def test_a_bad_value_is_named(option: str, said: str) -> None:
    with pytest.raises(click.BadParameter) as stop:
        asked(option)
    assert said in stop.value.message
    assert stop.value.param is not None and option.startswith(stop.value.param.opts[0] + "=")


@pytest.mark.parametrize("text", [".5", "0.5", "5e-1", "+.5"])
def test_numbers_may_be_written_as_people_write_them(text: str) -> None:
    assert asked(f"--temperature={text}").request().sampling.temperature == 0.5


def test_a_grammar_and_a_schema_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        asked("--grammar", "x", "--json-schema", "{}").request()


def test_a_file_that_cannot_be_read_is_a_failed_run(tmp_path: Path) -> None:
    (tmp_path / "latin1").write_bytes(b"\xe9")
    for path, said in ((tmp_path / "absent", "cannot read"), (tmp_path / "latin1", "is not UTF-8 text")):
        with pytest.raises(LocalspecError, match=said) as stop:
            asked("--grammar-file", str(path))
        assert stop.value.exit_code == 1 and str(path) in stop.value.message


def test_help_groups_the_options_and_shows_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _help()
    text = capsys.readouterr().out
    order = [
        text.index(f"{heading}:\n") for heading in ("Pair", "Loading", "Sampling", "Speculation", "Request")
    ]
    assert order == sorted(order)
    for option in OPTIONS:
        assert option.flags[0] in text
    assert f"[default: {DEFAULTS['sampling.top_k']}]" in " ".join(text.split())


def _help() -> None:
    @click.command(cls=SettingCommand)
    @takes(*GROUPS)
    def command(asked: Asked) -> None:
        raise AssertionError("help runs nothing")

    command.main(["--help"])
