"""The user's settings: read once at the edge, where each value came from, and how one is remembered.

Precedence, highest first:

    flag > LOCALSPEC_<KEY> in the environment > config file (`--config`, else the user's) > default

The environment is read in `load_config` and nowhere below it. `Config` holds only what somebody set for the
engine, so that its defaults are written once, there: `LoadSettings(**config.load)`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from localspec.atomic import replace_file
from localspec.config.settings import SETTINGS, Setting
from localspec.config.values import from_environment
from localspec.errors import LocalspecError, UsageError, nearest
from localspec.locations import locations
from localspec.tomlfile import read_text, read_toml, shortened, with_value

__all__ = ["SETTINGS", "Config", "Row", "Setting", "check_config", "check_keymap", "load_config", "set_key"]

KEYMAP = "keymap"
MAX_PROBLEMS = 50
"""A file with more is not a settings file; each costs a search for the nearest key."""
RESERVED = frozenset({"LOCALSPEC_HOME", "LOCALSPEC_VENV", "LOCALSPEC_WHEELS", "LOCALSPEC_API_KEY"})
"""Variables that are no settings: where everything is kept, what the set-up scripts read, a secret."""


@dataclass(frozen=True, slots=True)
class Config:
    """Effective settings; immutable, passed down as an argument."""

    file: Path
    models_dir: Path
    default_pair: str | None = None
    theme: str | None = None
    notices: bool = True
    host: str = "127.0.0.1"
    port: int = 8080
    keymap: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Binding id -> keys, comma separated."""
    load: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Fields of `LoadSettings` that somebody set; likewise below."""
    sampling: Mapping[str, Any] = field(default_factory=dict, hash=False)
    speculation: Mapping[str, Any] = field(default_factory=dict, hash=False)
    request: Mapping[str, Any] = field(default_factory=dict, hash=False)
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Key -> where its value came from; a key that nobody set is absent."""
    warnings: tuple[str, ...] = ()
    """Variables that look like settings and are none."""

    def get(self, setting: Setting) -> Any:
        """The value of a setting; None for an engine setting that nobody set."""
        if setting.section == "app":
            return getattr(self, setting.field)
        values: Mapping[str, Any] = getattr(self, setting.section)
        return values.get(setting.field)

    def with_flags(self, given: Mapping[str, Any]) -> Config:
        """The same settings under what was given on the command line.

        Args:
            given: `section.field` (`load.n_ctx`, `app.host`) -> value; others are not ours and ignored.
        """
        found = {key: given[setting.fills] for key, setting in SETTINGS.items() if setting.fills in given}
        return _with_values(self, found, dict.fromkeys(found, "flag"))

    def rows(self, defaults: Mapping[str, Any] | None = None) -> tuple[Row, ...]:
        """Every setting with its value and source, then the keys that were remapped.

        Args:
            defaults: `section.field` -> the engine's default, shown where nobody set a value.
        """
        engine = defaults or {}
        listed = [
            Row(key, self.get(s) if key in self.sources or s.section == "app" else engine.get(s.fills),
                self.sources.get(key, "default"), s.help)
            for key, s in SETTINGS.items()
        ]  # fmt: skip
        listed += [Row(f"{KEYMAP}.{name}", keys, str(self.file), "") for name, keys in self.keymap.items()]
        return tuple(listed)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of `config show`."""

    key: str
    value: Any
    source: str
    """`flag`, the variable, the file, or `default`."""
    help: str


def load_config(environ: Mapping[str, str], file: Path | None = None) -> Config:
    """Read the settings; the one place that looks at the environment.

    Args:
        environ: `os.environ`, or a stand-in.
        file: instead of `locations().config_file`; must exist when given.

    Raises:
        UsageError: the first bad key or value; names file and key, or the variable.
    """
    config, problems = _read(environ, file)
    if problems:
        raise problems[0]
    return config


def check_config(environ: Mapping[str, str], file: Path | None = None) -> tuple[UsageError, ...]:
    """Every problem that `load_config` would stop at, and variables that are no settings."""
    config, problems = _read(environ, file)
    return (*problems, *(UsageError(warning) for warning in config.warnings))


def _read(environ: Mapping[str, str], file: Path | None) -> tuple[Config, list[UsageError]]:
    if file is not None and not file.is_file():
        raise UsageError(f"`{file}` does not exist")
    source = file or locations().config_file
    config = Config(file=source, models_dir=locations().models_dir)
    problems: list[UsageError] = []
    try:
        document = read_toml(source)
    except UsageError as error:
        document = {}
        problems.append(error)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, value in _parsed(document, str(source), problems):
        values[key], sources[key] = value, str(source)
    for key, setting in SETTINGS.items():
        raw = environ.get(setting.variable, "")
        if raw:
            try:
                values[key] = setting.parse(from_environment(setting.parse, raw))
                sources[key] = setting.variable
            except ValueError as error:
                problems.append(UsageError(f"{setting.variable} {error}"))
    if values.get("grammar") is not None and values.get("json_schema") is not None:
        places = f"{sources['grammar']} and {sources['json_schema']}"
        problems.append(UsageError(f"`grammar` and `json_schema` exclude each other ({places})"))
    config = replace(config, keymap=values.pop(KEYMAP, {}), warnings=tuple(_strangers(environ)))
    return _with_values(config, values, sources), problems


def _parsed(
    document: Mapping[str, Any], source: str, problems: list[UsageError]
) -> Iterator[tuple[str, Any]]:
    """Keys and values of a config file; what is wrong goes to `problems`."""
    for key, raw in document.items():
        try:
            yield key, _value(key, raw, source)
        except UsageError as error:
            problems.append(error)
            if len(problems) == MAX_PROBLEMS:
                return


def _value(key: str, raw: object, source: str) -> Any:
    if key == KEYMAP:
        return _keymap(raw, source)
    setting = SETTINGS.get(key)
    if setting is None:
        close = nearest(key, [*SETTINGS, KEYMAP])
        hint = f"did you mean `{close}`?" if close else "`localspec config show` lists the keys"
        raise UsageError(f"`{source}` has the unknown key `{shortened(key)}`", hint=hint)
    try:
        return setting.parse(raw)
    except ValueError as error:
        raise UsageError(f"`{source}`: `{key}` {error}", hint=setting.help) from error


def _keymap(raw: object, source: str) -> dict[str, str]:
    if not isinstance(raw, dict):
        raise UsageError(f"`{source}`: `{KEYMAP}` must be a table", hint='[keymap] "reply.stop" = "escape"')
    for name, keys in raw.items():
        if not isinstance(keys, str) or not all(part.strip() for part in keys.split(",")):
            raise UsageError(
                f"`{source}`: [{KEYMAP}] `{shortened(name)}` must be keys separated by commas",
                hint='write for example "ctrl+g" or "escape,ctrl+g"; quote ids that have a dot',
            )
    return dict(raw)


def _with_values(config: Config, values: Mapping[str, Any], sources: Mapping[str, str]) -> Config:
    changes: dict[str, Any] = {"sources": {**config.sources, **sources}}
    for key, value in values.items():
        setting = SETTINGS[key]
        if setting.section == "app":
            changes[setting.field] = value
        else:
            held = changes.get(setting.section, getattr(config, setting.section))
            changes[setting.section] = {**held, setting.field: value}
    return replace(config, **changes)


def _strangers(environ: Mapping[str, str]) -> Iterator[str]:
    known = {setting.variable for setting in SETTINGS.values()} | RESERVED
    for name in sorted(environ):
        if name.startswith("LOCALSPEC_") and name not in known:
            close = nearest(name, known)
            yield f"{shortened(name)} is no setting" + (f": did you mean {close}?" if close else "")


def check_keymap(config: Config, ids: Collection[str]) -> None:
    """Refuse remapped keys of bindings that do not exist.

    Raises:
        UsageError: names file and id; the hint has the nearest id.
    """
    for name in config.keymap:
        if name not in ids:
            close = nearest(name, ids)
            raise UsageError(
                f"`{config.file}`: [{KEYMAP}] has no binding `{shortened(name)}`",
                hint=f"did you mean `{close}`?" if close else f"known: {', '.join(sorted(ids))}",
            )


def set_key(key: str, value: object, file: Path | None = None) -> None:
    """Remember one setting in the config file; comments and everything else stay.

    Args:
        key: a setting, or `keymap.<binding id>`.
        value: as TOML would hold it.

    Raises:
        UsageError: unknown key, bad value, a file that is no TOML or cannot be edited line by line.
        LocalspecError: the file cannot be written.
    """
    path = file or locations().config_file
    table, _, name = key.partition(".") if key.startswith(f"{KEYMAP}.") else ("", "", key)
    _value(table or name, {name: value} if table else value, str(path))
    edited = with_value(read_text(path), table, name, value, str(path))
    try:
        replace_file(path, edited.encode())
    except OSError as error:
        raise LocalspecError(f"cannot write `{path}`: {error.strerror}") from error
