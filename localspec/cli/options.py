"""Every engine option: the flag, the setting it fills, and how a bad value is answered.

What a value may be and its line of help are the configuration's: an option is a flag in front of a key of
`localspec.config`. A command takes groups with `@takes(LOAD, …)` and receives `Asked`: only what the user
gave, by section and field. The field an option fills is also where the run record shows it, so a test walks
the table for options without effect.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from localspec.config import SETTINGS, Config, load_config
from localspec.config.values import Parser, from_environment, json_object, text, texts, whole
from localspec.engine.settings import (
    METHODS,
    LoadSettings,
    Message,
    Request,
    SamplingSettings,
    SpeculationSettings,
)
from localspec.errors import LocalspecError, UsageError


@dataclass(frozen=True, slots=True)
class Option:
    """One option."""

    flags: tuple[str, ...]
    fills: str
    """Section and field: `sampling.top_k`."""
    parse: Parser
    """Text (a list of texts when it repeats) to value; raises ValueError with what it must be."""
    help: str
    metavar: str = ""
    repeats: bool = False
    means: bool | None = None
    """Value of an option that takes none (`--no-mmap` means False)."""


def _key(key: str, metavar: str, *flags: str, repeats: bool = False) -> Option:
    """The option of a configuration key."""
    setting = SETTINGS[key]

    def parse(value: object) -> Any:
        if isinstance(value, str):
            # As in a variable, but `.5` is a number to whoever types it.
            value = from_environment(setting.parse, re.sub(r"^([+-]?)\.(?=\d)", r"\g<1>0.", value))
        return setting.parse(value)

    flags = flags or (f"--{key.replace('_', '-')}",)
    return Option(flags, setting.fills, parse, _sentence(setting.help), metavar, repeats)


def _switch(key: str, means: bool, flag: str, help: str = "") -> Option:
    setting = SETTINGS[key]
    return Option((flag,), setting.fills, bool, help or _sentence(setting.help), means=means)


def _sentence(help: str) -> str:
    return help[:1].upper() + help[1:] + "."


def file_text(parse: Parser) -> Parser:
    """The text of a file, read as `parse` reads text."""

    def read(value: object) -> Any:
        try:
            found = Path(str(value)).read_text(encoding="utf-8")
        except OSError as error:
            raise LocalspecError(f"cannot read `{value}`: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise LocalspecError(f"`{value}` is not UTF-8 text") from error
        return parse(found)

    return read


def key_values(value: object) -> tuple[tuple[str, Any], ...]:
    """`K=V` each; V is JSON where it reads as JSON (`true`, `3`), else text."""
    found: list[tuple[str, Any]] = []
    for item in texts(value):
        key, sign, raw = item.partition("=")
        if not sign or not key:
            raise ValueError(f"has `{item}`, which is not K=V")
        try:
            found.append((key, json.loads(raw)))
        except (ValueError, RecursionError):
            found.append((key, raw))
    return tuple(found)


def a_path(value: object) -> Path:
    return Path(text(value)).expanduser()


def a_port(value: object) -> int:
    """A port, or 0 for a free one, which would make no sense to keep in a file."""
    parse = whole(0, 65535)
    return int(parse(from_environment(parse, text(value))))


SAME_FROM_FILE = "The same from a file."
PAIR = (
    Option(("--target",), "pair.target", a_path, "GGUF file to answer with.", "FILE"),
    Option(("--draft",), "pair.draft", a_path, "GGUF file that drafts for the target.", "FILE"),
    Option(("--force",), "pair.force", bool, "Load also what does not fit the free memory.", means=True),
)
LOAD = (
    _key("ctx", "auto|N"),
    _key("gpu_layers", "auto|N"),
    _key("draft_gpu_layers", "auto|N"),
    _key("kv", "K[,V]"),
    _key("draft_kv", "K[,V]"),
    _switch("mmap", False, "--no-mmap", "Read the files instead of mapping them."),
    _switch("mlock", True, "--mlock"),
    _key("threads", "auto|N"),
    _key("batch", "N"),
    _key("ubatch", "N"),
    _key("flash_attn", "auto|on|off"),
    _key("device", "NAME"),
    _key("draft_device", "NAME"),
    _key("tensor_split", "A,B,…"),
    _key("n_cpu_moe", "N"),
    _key("rpc", "HOST:PORT,…"),
)
SLOTS = (_key("slots", "N"),)
SAMPLING = (
    _key("temperature", "X", "--temperature", "--temp"),
    _key("top_k", "N"),
    _key("top_p", "X"),
    _key("min_p", "X"),
    _key("typical_p", "X", "--typical", "--typical-p"),
    _key("repeat_last_n", "N"),
    _key("repeat_penalty", "X"),
    _key("presence_penalty", "X"),
    _key("frequency_penalty", "X"),
    _key("dry_multiplier", "X"),
    _key("dry_base", "X"),
    _key("dry_allowed_length", "N"),
    _key("dry_penalty_last_n", "N"),
    _key("dry_sequence_breakers", "TEXT", "--dry-sequence-breaker", repeats=True),
    _key("xtc_probability", "X"),
    _key("xtc_threshold", "X"),
    _key("logit_bias", "ID±X", repeats=True),
    _key("grammar", "GBNF"),
    Option(("--grammar-file",), "sampling.grammar", file_text(text), SAME_FROM_FILE, "FILE"),
    _key("json_schema", "JSON"),
    Option(("--json-schema-file",), "sampling.json_schema", file_text(json_object), SAME_FROM_FILE, "FILE"),
    _key("seed", "N"),
)
METHOD = replace(_key("method", "NAME"), help=f"How to draft: {', '.join(METHODS)}.")
SPECULATION = (
    METHOD,
    _key("k", "auto|N"),
    _key("verify", "auto|match|rejection"),
    _key("p_min", "X"),
    _switch("tuned", False, "--no-tuned", "Start `auto` afresh, not from what `bench --tune` stored."),
    _switch("require_spec", True, "--require-spec"),
)
REQUEST = (
    Option(("--system",), "request.system", text, "System prompt.", "TEXT"),
    _key("max_tokens", "N"),
    Option(("--stop",), "request.stop", texts, "Text that ends the reply; may be given again.", "TEXT", True),
    Option(("--ignore-eos",), "request.ignore_eog", bool, "Go on after the end of generation.", means=True),
    Option(("--template-arg",), "request.template_args", key_values,
           "Variable of the template (enable_thinking=false); may be given again.", "K=V", True),
)  # fmt: skip
LISTEN = (
    _key("host", "ADDRESS"),
    Option(("--port",), "app.port", a_port, "Port the server listens on; 0 takes a free one.", "N"),
)

DEFAULTS: dict[str, Any] = {
    f"{section}.{field.name}": field.default
    for section, settings in (
        ("load", LoadSettings), ("sampling", SamplingSettings), ("speculation", SpeculationSettings),
        ("request", Request),
    )
    for field in fields(settings) if field.default is not MISSING
}  # fmt: skip
"""Field → the value it has when nobody says otherwise."""
HEADINGS = {
    "pair": "Pair",
    "speculation": "Speculation",
    "load": "Loading",
    "sampling": "Sampling",
    "request": "Request",
}


class SettingOption(click.Option):
    """A click option that knows what it fills."""

    def __init__(self, option: Option) -> None:
        self.fills = option.fills
        self._parse = option.parse
        help = option.help
        default = DEFAULTS.get(option.fills)
        if isinstance(default, int | float | str) and not isinstance(default, bool):
            help += f" [default: {default}]"
        kind: dict[str, Any] = {
            "metavar": option.metavar,
            "multiple": option.repeats,
            "callback": self._convert,
        }
        if option.means is not None:
            # No default for click: what was not given must stay apart from what was given as the default.
            kind = {"is_flag": True, "flag_value": option.means, "default": None}
        super().__init__(option.flags, help=help, **kind)

    def _convert(self, ctx: click.Context, _: click.Parameter, value: Any) -> Any:
        if not is_given(ctx, self):
            return None
        try:
            return self._parse(list(value) if self.multiple else value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, self) from error


def is_given(ctx: click.Context, param: click.Parameter) -> bool:
    """Whether the user wrote it, rather than a default."""
    return ctx.get_parameter_source(param.name or "") in (
        ParameterSource.COMMANDLINE,
        ParameterSource.ENVIRONMENT,
    )


class SettingCommand(click.Command):
    """A command whose help lists its settings by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            if row is not None and isinstance(param, click.Option):
                section = param.fills.partition(".")[0] if isinstance(param, SettingOption) else ""
                rows.setdefault(HEADINGS.get(section, "Options"), []).append(row)
        for heading, listed in rows.items():
            if listed:
                with formatter.section(heading):
                    formatter.write_dl(listed)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user gave on the command line, by section and field; nothing else."""

    given: Mapping[str, Any]
    config: Config
    """What holds where nothing was given."""

    @property
    def target(self) -> Path | None:
        return self.given.get("pair.target")

    @property
    def draft(self) -> Path | None:
        return self.given.get("pair.draft")

    @property
    def force(self) -> bool:
        """Load also what does not fit."""
        return bool(self.given.get("pair.force"))

    def effective(self) -> Config:
        """The configuration with what was given on top.

        Raises:
            UsageError: a grammar and a JSON schema at once.
        """
        given = dict(self.given)
        constraints = {"sampling.grammar", "sampling.json_schema"}
        if constraints <= set(given):
            raise UsageError("`--grammar` and `--json-schema` exclude each other", hint="give one of them")
        if constraints & set(given):  # it replaces either of the configuration's
            given = dict.fromkeys(constraints) | given
        return self.config.with_flags(given)

    def load(self) -> LoadSettings:
        """Load settings: what was given, over the configuration, over the defaults."""
        values = self.effective()
        settings = LoadSettings(**values.load)
        # The output rows are sized at load, so a longer fixed draft has to be known there.
        return replace(settings, k_max=max(settings.k_max, values.speculation.get("k") or 0))

    def request(self) -> Request:
        """A request without the user's message: what was given, over the configuration, over the defaults."""
        values = self.effective()
        own = {key.removeprefix("request."): v for key, v in self.given.items() if key.startswith("request.")}
        system = own.pop("system", None)
        return Request(
            messages=() if system is None else (Message("system", system),),
            sampling=SamplingSettings(**values.sampling),
            speculation=SpeculationSettings(**values.speculation),
            **{**values.request, **own},
        )


def takes(*groups: Iterable[Option]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command `--config` and the options of these groups, as one `Asked` named `asked`."""
    options = [SettingOption(option) for group in groups for option in group]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("--config", "config_file", metavar="FILE", help="Settings file instead of the user's.")
        @functools.wraps(command)
        def call(config_file: str | None, **values: Any) -> Any:
            ctx = click.get_current_context()
            given: dict[str, Any] = {}
            for option in options:
                value = values.pop(option.name or "")
                if is_given(ctx, option):
                    given[option.fills] = value
            config = load_config(os.environ, Path(config_file) if config_file else None)
            return command(asked=Asked(given, config), **values)

        # The list that @click.option fills and @click.command reads.
        call.__dict__.setdefault("__click_params__", []).extend(reversed(options))
        return call

    return decorate
