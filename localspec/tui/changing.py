"""Reads, shows and changes settings by the keys of the settings table. Pure: values in, values out."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from localspec.config import SETTINGS, Setting
from localspec.config.values import from_environment, logit_bias, shares, texts
from localspec.engine.settings import LoadSettings
from localspec.errors import UsageError, unknown
from localspec.tui.conversation import ChatSettings

RELOAD_SECTION = "load"
SECTIONS = ("sampling", "speculation", "request", RELOAD_SECTION)
CHANGEABLE = {key: setting for key, setting in SETTINGS.items() if setting.section in SECTIONS}
DEFAULT = "default"
"""What stands for the engine's own value."""


@dataclass(frozen=True, slots=True)
class Held:
    """All settings that a chat screen holds."""

    chat: ChatSettings
    load: LoadSettings


def setting_of(key: str) -> Setting:
    """The row of the settings table.

    Raises:
        UsageError: there is no such key, or it cannot be changed here.
    """
    if key not in CHANGEABLE:
        raise unknown("setting", key, CHANGEABLE)
    return CHANGEABLE[key]


def value_of(held: Held, key: str) -> Any:
    """The value a setting has now."""
    setting = setting_of(key)
    if setting.section == "request":
        return getattr(held.chat, setting.field)
    holder = held.load if setting.section == RELOAD_SECTION else getattr(held.chat, setting.section)
    return getattr(holder, setting.field)


def changed(held: Held, key: str, text: str) -> Held:
    """The settings after a person typed `text` for `key`; `default` and nothing mean the engine's own.

    Raises:
        UsageError: unknown key, or no value of that kind.
    """
    setting = setting_of(key)
    text = text.strip()
    if text in ("", DEFAULT):
        return _put(held, setting, value_of(Held(ChatSettings(), LoadSettings()), key))
    try:
        return _put(held, setting, setting.parse(from_environment(setting.parse, text)))
    except ValueError as error:
        raise UsageError(f"`{key}` {error}", hint=setting.help) from error


def _put(held: Held, setting: Setting, value: Any) -> Held:
    change = {setting.field: value}
    chat = held.chat
    match setting.section:
        case "load":
            return replace(held, load=replace(held.load, **change))
        case "sampling":
            chat = replace(chat, sampling=replace(chat.sampling, **change))
        case "speculation":
            chat = replace(chat, speculation=replace(chat.speculation, **change))
        case _:
            chat = replace(chat, **change)
    return replace(held, chat=chat)


def shown(key: str, value: Any) -> str:
    """A value as a person would type it; "" for one that is not set."""
    parse = setting_of(key).parse
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if parse in (texts, shares):
        return json.dumps(list(value), ensure_ascii=False)
    if parse is logit_bias:
        return ", ".join(f"{token}{bias:+g}" for token, bias in value)
    return ", ".join(value) if isinstance(value, tuple) else str(value)
