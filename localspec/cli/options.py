"""Every engine option, as one table per group: the flag, the settings field it fills, its type, its help.

A command takes groups with `@takes(LOAD, …)` and receives `Asked`: only what the user gave. Settings are
what was given, laid over the configuration, laid over the defaults of `engine.settings`. The field an
option fills is also where the run record shows it, so a test walks the table for options without effect.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from localspec.cli.types import (
    AutoOr,
    Endpoints,
    JsonText,
    KeyValue,
    KvPair,
    LogitBias,
    OneOf,
    Real,
    Split,
    TextFile,
    Whole,
)
from localspec.engine.settings import (
    METHODS,
    FlashAttention,
    LoadSettings,
    Message,
    Request,
    SamplingSettings,
    SpeculationSettings,
    VerifyRule,
)
from localspec.errors import UsageError

K_LIMIT = 64
"""Longest draft that can be asked for: beyond it no pair accepts enough to pay for the rows."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One option."""

    flags: tuple[str, ...]
    fills: str
    """Section and field: `sampling.top_k`."""
    type: click.ParamType[Any]
    help: str
    repeats: bool = False
    means: Any = None
    """Value of an option that takes none (`--no-mmap` means False)."""


def _one(flag: str, fills: str, type: click.ParamType[Any], help: str) -> Setting:
    return Setting((flag,), fills, type, help)


def _flag(flag: str, fills: str, means: bool, help: str) -> Setting:
    return Setting((flag,), fills, click.BOOL, help, means=means)


PAIR = (
    _one("--target", "pair.target", click.Path(path_type=Path), "GGUF file to answer with."),
    _one("--draft", "pair.draft", click.Path(path_type=Path), "GGUF file that drafts for the target."),
)
LOAD = (
    _one("--ctx", "load.n_ctx", AutoOr(1), "Context length in tokens; auto: the trained one, at most 8192."),
    _one("--gpu-layers", "load.gpu_layers", AutoOr(0), "Target layers on the GPU; auto: all that fit."),
    _one("--draft-gpu-layers", "load.draft_gpu_layers", AutoOr(0), "Draft layers on the GPU."),
    _one("--kv", "load.kv", KvPair(), "Types of the target's KV cache: q8_0, or one for K and one for V."),
    _one("--draft-kv", "load.draft_kv", KvPair(), "Types of the draft's KV cache."),
    _flag("--no-mmap", "load.mmap", False, "Read the files instead of mapping them."),
    _flag("--mlock", "load.mlock", True, "Keep the weights from being swapped out."),
    _one("--threads", "load.threads", AutoOr(1), "CPU threads; auto: the physical cores."),
    _one("--batch", "load.n_batch", Whole(1), "Prompt tokens per decode call."),
    _one("--ubatch", "load.n_ubatch", Whole(1), "Rows the backend computes at once."),
    _one("--flash-attn", "load.flash_attn", OneOf("flash attention mode", get_args(FlashAttention)),
         "Flash attention."),
    _one("--device", "load.device", click.STRING, "Device of the target, as `localspec doctor` lists it."),
    _one("--draft-device", "load.draft_device", click.STRING, "Device of the draft."),
    _one("--tensor-split", "load.tensor_split", Split(), "Share of the model per GPU: 3,1."),
    _one("--n-cpu-moe", "load.n_cpu_moe", Whole(0), "First blocks whose expert tensors stay in host memory."),
    _one("--rpc", "load.rpc", Endpoints(), "ggml RPC servers whose devices join: host:port,…"),
)  # fmt: skip
SAMPLING = (
    Setting(("--temperature", "--temp"), "sampling.temperature", Real(0), "0 is greedy."),
    _one("--top-k", "sampling.top_k", Whole(0), "Keep the k most likely tokens; 0 is off."),
    _one("--top-p", "sampling.top_p", Real(0, 1), "Keep tokens up to this cumulated probability; 1 is off."),
    _one("--min-p", "sampling.min_p", Real(0, 1), "Drop tokens below this share of the likeliest; 0 is off."),
    Setting(("--typical", "--typical-p"), "sampling.typical_p", Real(0, 1), "Locally typical; 1 is off."),
    _one("--repeat-last-n", "sampling.repeat_last_n", Whole(-1), "Tokens the penalties look at; -1: all."),
    _one("--repeat-penalty", "sampling.repeat_penalty", Real(0.01), "Penalty on repeats; 1 is off."),
    _one("--presence-penalty", "sampling.presence_penalty", Real(), "Penalty on having occurred; 0 is off."),
    _one("--frequency-penalty", "sampling.frequency_penalty", Real(), "Penalty per occurrence; 0 is off."),
    _one("--dry-multiplier", "sampling.dry_multiplier", Real(0), "Strength of DRY; 0 is off."),
    _one("--dry-base", "sampling.dry_base", Real(1), "Base of DRY's growth."),
    _one("--dry-allowed-length", "sampling.dry_allowed_length", Whole(0), "Repeats DRY leaves alone."),
    _one("--dry-penalty-last-n", "sampling.dry_penalty_last_n", Whole(-1), "Tokens DRY looks at; -1: all."),
    Setting(("--dry-sequence-breaker",), "sampling.dry_sequence_breakers", click.STRING,
            "Text that ends a repeat for DRY; may be given again.", repeats=True),
    _one("--xtc-probability", "sampling.xtc_probability", Real(0, 1), "Chance of XTC per token; 0 is off."),
    _one("--xtc-threshold", "sampling.xtc_threshold", Real(0, 1), "Probability from which XTC removes."),
    Setting(("--logit-bias",), "sampling.logit_bias", LogitBias(),
            "Add to a token's logit: 15043+1, 2-inf; may be given again.", repeats=True),
    _one("--grammar", "sampling.grammar", click.STRING, "GBNF grammar the reply must follow."),
    _one("--grammar-file", "sampling.grammar", TextFile(), "The same from a file."),
    _one("--json-schema", "sampling.json_schema", JsonText(), "JSON schema the reply must follow."),
    _one("--json-schema-file", "sampling.json_schema", TextFile(JsonText()), "The same from a file."),
    _one("--seed", "sampling.seed", Whole(0, 2**32 - 1), "Makes a sampled reply repeatable."),
)  # fmt: skip
SPECULATION = (
    _one("--method", "speculation.method", OneOf("method", METHODS), "How to draft."),
    _one("--k", "speculation.k", AutoOr(0, K_LIMIT), "Draft length; a number fixes it and never pauses."),
    _one("--verify", "speculation.verify", OneOf("verify rule", get_args(VerifyRule)),
         "How sampled drafts are judged."),
    _one("--p-min", "speculation.p_min", Real(0, 1), "Confidence below which a draft stops; 0 is off."),
    _flag("--require-spec", "speculation.require", True, "Fail when the pair cannot speculate."),
)  # fmt: skip
REQUEST = (
    _one("--system", "request.system", click.STRING, "System prompt."),
    _one("--max-tokens", "request.max_tokens", Whole(1), "Longest reply in tokens."),
    Setting(("--stop",), "request.stop", click.STRING, "Text that ends the reply; may be given again.",
            repeats=True),
    _flag("--ignore-eos", "request.ignore_eog", True, "Go on after the end-of-generation token."),
    Setting(("--template-arg",), "request.template_args", KeyValue(),
            "Variable of the chat template: enable_thinking=false; may be given again.", repeats=True),
)  # fmt: skip


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

    def __init__(self, setting: Setting) -> None:
        kind: dict[str, Any] = {"type": setting.type}
        if setting.means is not None:
            kind = {"is_flag": True, "flag_value": setting.means, "default": None}
        default = DEFAULTS.get(setting.fills)
        if isinstance(default, int | float | str) and not isinstance(default, bool):
            kind["show_default"] = f"{default}"
        super().__init__(setting.flags, help=setting.help, multiple=setting.repeats, **kind)
        self.fills = setting.fills


class SettingCommand(click.Command):
    """A command whose help lists its settings by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            if row is not None:
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

    def section(self, name: str) -> dict[str, Any]:
        """The given fields of one section."""
        prefix = name + "."
        return {field.removeprefix(prefix): v for field, v in self.given.items() if field.startswith(prefix)}

    @property
    def target(self) -> Path | None:
        return self.given.get("pair.target")

    @property
    def draft(self) -> Path | None:
        return self.given.get("pair.draft")

    def load(self, base: LoadSettings = LoadSettings()) -> LoadSettings:  # noqa: B008 (frozen)
        """Load settings: what was given, over `base`."""
        settings = replace(base, **self.section("load"))
        k = self.given.get("speculation.k")
        # The output rows are sized at load, so a longer fixed draft has to be known there.
        return replace(settings, k_max=max(settings.k_max, k or 0))

    def request(self, base: Request = Request()) -> Request:  # noqa: B008 (frozen)
        """A request without the user's message: what was given, over `base`.

        Raises:
            UsageError: a grammar and a JSON schema at once.
        """
        sampling = replace(base.sampling, **self.section("sampling"))
        if sampling.grammar is not None and sampling.json_schema is not None:
            raise UsageError("`--grammar` and `--json-schema` exclude each other", hint="give one of them")
        own = self.section("request")
        system = own.pop("system", None)
        return replace(
            base,
            sampling=sampling,
            speculation=replace(base.speculation, **self.section("speculation")),
            messages=base.messages if system is None else (Message("system", system),),
            **own,
        )


def takes(*groups: Iterable[Setting]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of these groups; it receives them as one `Asked` named `asked`."""
    options = [SettingOption(setting) for group in groups for setting in group]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def call(**values: Any) -> Any:
            source = click.get_current_context().get_parameter_source
            given: dict[str, Any] = {}
            for option in options:
                assert option.name is not None
                value = values.pop(option.name)
                if source(option.name) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
                    given[option.fills] = value
            return command(asked=Asked(given), **values)

        for option in reversed(options):
            _attach(call, option)
        return call

    return decorate


def _attach(command: Callable[..., Any], option: click.Option) -> None:
    # The list @click.option fills, read by @click.command.
    command.__dict__.setdefault("__click_params__", []).append(option)
