"""Settings: precedence, validation that names the place, and remembering one without losing the rest."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.config import MAX_PROBLEMS, SETTINGS, Config, check_config, check_keymap, load_config, set_key
from localspec.config.settings import K_LIMIT, METHODS
from localspec.config.values import KV_TYPES
from localspec.engine import settings as engine
from localspec.errors import LocalspecError, UsageError
from localspec.locations import locations
from tests.kit.toml_faults import mutated

FULL = """\
# my settings
default_pair = "llama-3.1-8b-1b"
models_dir = "/srv/models"
theme = "nord"  # dark
notices = false
host = "0.0.0.0"
port = 9000
ctx = 16384
gpu_layers = "auto"
kv = ["q8_0", "f16"]
draft_kv = "f16"
mmap = false
tensor_split = [3, 1]
rpc = "10.0.0.2:50052"
temperature = 0.2
logit_bias = ["15043+1.5", "2-inf"]
dry_sequence_breakers = ["\\n", "#"]
method = "draft"
k = 4
require_spec = true
max_tokens = 512

[keymap]
"reply.stop" = "escape,ctrl+g"
"""


@pytest.fixture
def file(home: Path) -> Path:
    """The user's config file, empty."""
    path = locations().config_file
    assert path.is_relative_to(home)
    path.parent.mkdir(parents=True)
    path.write_text("")
    return path


def written(file: Path, text: str) -> Config:
    file.write_text(text)
    return load_config({})


def refusal(file: Path, text: str) -> UsageError:
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_config({})
    return caught.value


class TestReading:
    def test_nothing_set(self, home: Path) -> None:
        config = load_config({})
        assert config == Config(file=home / "config" / "config.toml", models_dir=home / "data" / "models")
        assert not config.load
        assert not config.sources

    def test_every_kind_of_value(self, file: Path) -> None:
        config = written(file, FULL)
        assert (config.default_pair, config.theme, config.notices) == ("llama-3.1-8b-1b", "nord", False)
        assert (config.host, config.port, config.models_dir) == ("0.0.0.0", 9000, Path("/srv/models"))
        assert config.load == {
            "n_ctx": 16384, "gpu_layers": None, "kv": ("q8_0", "f16"), "draft_kv": ("f16", "f16"),
            "mmap": False, "tensor_split": (3.0, 1.0), "rpc": ("10.0.0.2:50052",),
        }  # fmt: skip
        assert config.sampling == {
            "temperature": 0.2,
            "logit_bias": ((15043, 1.5), (2, float("-inf"))),
            "dry_sequence_breakers": ("\n", "#"),
        }
        assert config.speculation == {"method": "draft", "k": 4, "require": True}
        assert config.request == {"max_tokens": 512}
        assert config.keymap == {"reply.stop": "escape,ctrl+g"}
        assert set(config.sources.values()) == {str(file)}

    def test_the_engine_takes_what_was_set(self, file: Path) -> None:
        config = written(file, FULL)
        assert engine.LoadSettings(**config.load).kv == ("q8_0", "f16")
        assert engine.SamplingSettings(**config.sampling).temperature == 0.2
        assert engine.SpeculationSettings(**config.speculation).require
        assert engine.Request(**config.request).max_tokens == 512

    def test_precedence(self, file: Path) -> None:
        """Flag over environment over file over default."""
        file.write_text("ctx = 1000\nport = 1001\ntheme = 'a'\n")
        config = load_config({"LOCALSPEC_CTX": "2000", "LOCALSPEC_PORT": "2001", "LOCALSPEC_HOST": "::1"})
        config = config.with_flags({"load.n_ctx": 3000, "pair.target": "x", "app.host": "127.0.0.2"})
        assert (config.load["n_ctx"], config.port, config.theme) == (3000, 2001, "a")
        assert config.host == "127.0.0.2"
        assert config.sources == {
            "ctx": "flag", "host": "flag", "port": "LOCALSPEC_PORT", "theme": str(file),
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("key", "text", "value"),
        [
            ("ctx", "4096", 4096),
            ("ctx", "auto", None),
            ("kv", "q8_0,f16", ("q8_0", "f16")),
            ("kv", '["q8_0", "f16"]', ("q8_0", "f16")),
            ("kv", "q4_0", ("q4_0", "q4_0")),
            ("tensor_split", "3,1.5", (3.0, 1.5)),
            ("rpc", "a:1,b:2", ("a:1", "b:2")),
            ("mmap", "false", False),
            ("temperature", "0", 0.0),
            ("logit_bias", "5+1,6-inf", ((5, 1.0), (6, float("-inf")))),
            ("theme", "3", "3"),
            ("device", "true", "true"),
            ("models_dir", "models", Path("models").absolute()),
            ("models_dir", "~/models", Path("~/models").expanduser()),
            ("dry_sequence_breakers", '["\\n"]', ("\n",)),
            ("grammar", 'root ::= "a"\n# c', 'root ::= "a"\n# c'),
            ("json_schema", '{"type": "object"}', '{"type": "object"}'),
        ],
    )
    def test_environment(self, key: str, text: str, value: object) -> None:
        config = load_config({SETTINGS[key].variable: text})
        assert config.get(SETTINGS[key]) == value
        assert config.sources == {key: f"LOCALSPEC_{key.upper()}"}

    def test_an_empty_variable_is_none(self) -> None:
        assert load_config({"LOCALSPEC_CTX": ""}).load == {}

    def test_explicit_file_instead_of_the_user_s(self, file: Path, tmp_path: Path) -> None:
        file.write_text("port = 1\n")
        other = tmp_path / "other.toml"
        other.write_text("port = 2\n")
        assert load_config({}, other).port == 2
        with pytest.raises(UsageError, match="does not exist"):
            load_config({}, tmp_path / "none.toml")

    def test_variables_that_are_no_settings_are_named(self) -> None:
        config = load_config({"LOCALSPEC_TEMPERTURE": "1", "LOCALSPEC_HOME": "/x", "OTHER": "1"})
        assert config.warnings == ("LOCALSPEC_TEMPERTURE is no setting: did you mean LOCALSPEC_TEMPERATURE?",)


class TestTable:
    def test_every_engine_setting_can_be_set(self) -> None:
        for section, kind in (
            ("load", engine.LoadSettings),
            ("sampling", engine.SamplingSettings),
            ("speculation", engine.SpeculationSettings),
        ):
            names = {setting.field for setting in SETTINGS.values() if setting.section == section}
            assert names == {field.name for field in fields(kind)}
        app = {setting.field for setting in SETTINGS.values() if setting.section == "app"}
        assert app <= {field.name for field in fields(Config)}

    def test_words_are_the_engine_s(self) -> None:
        assert METHODS == engine.METHODS
        assert get_args(engine.KvType) == KV_TYPES
        for key, kind in (("flash_attn", engine.FlashAttention), ("verify", engine.VerifyRule)):
            for word in get_args(kind):
                assert SETTINGS[key].parse(word) == word

    def test_engine_defaults_are_in_range(self) -> None:
        defaults = [engine.LoadSettings(), engine.SamplingSettings(), engine.SpeculationSettings()]
        held = {name: value for group in defaults for name, value in asdict(group).items()}
        for setting in SETTINGS.values():
            value = held.get(setting.field)
            if setting.section in ("load", "sampling", "speculation") and value not in (None, (), ""):
                raw = list(value) if isinstance(value, tuple) else value
                assert setting.parse(raw) == value, setting.key

    def test_keys_are_the_names_of_the_options(self) -> None:
        from localspec.cli import options

        keys = {setting.fills: setting.key for setting in SETTINGS.values()}
        for option in (*options.LOAD, *options.SAMPLING, *options.SPECULATION):
            names = {flag.removeprefix("--").removeprefix("no-").replace("-", "_") for flag in option.flags}
            plural = {f"{name}s" for name in names}
            files = {name.removesuffix("_file") for name in names}
            assert keys[option.fills] in names | plural | files

    def test_help_is_one_line(self) -> None:
        assert all(setting.help and "\n" not in setting.help for setting in SETTINGS.values())


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "said", "hint"),
        [
            ("them = 'x'\n", "has the unknown key `them`", "did you mean `theme`?"),
            ("n_ctx = 3\n", "has the unknown key `n_ctx`", "did you mean `ctx`?"),
            ("[keymp]\n", "has the unknown key `keymp`", "did you mean `keymap`?"),
            ("zzzzzz = 1\n", "has the unknown key `zzzzzz`", "`localspec config show` lists the keys"),
            ("ctx = 0\n", "`ctx` must be between 1 and", None),
            ("ctx = 99999999999\n", "`ctx` must be between 1 and 2147483647", None),
            ("ctx = 1.5\n", "`ctx` must be a whole number, not a number", None),
            ("ctx = 'car'\n", '`ctx` must be "auto" or a whole number', None),
            ("port = true\n", "`port` must be a whole number, not a boolean", None),
            ("port = 70000\n", "`port` must be between 1 and 65535", None),
            ("mmap = 1\n", "`mmap` must be true or false, not an integer", None),
            ("temperature = nan\n", "`temperature` must be 0 or more", None),
            ("temperature = -1\n", "`temperature` must be 0 or more", None),
            ("presence_penalty = inf\n", "`presence_penalty` must be a finite number", None),
            ("top_p = 1.5\n", "`top_p` must be between 0 and 1", None),
            (f"top_p = 1{'0' * 400}\n", "`top_p` is too large a number", None),
            ("method = 'darft'\n", "did you mean `draft`?", None),
            ("kv = 'q8'\n", "did you mean `q8_0`?", None),
            ("kv = ['f16', 'f16', 'f16']\n", "`kv` names more than K and V", None),
            ("kv = []\n", "`kv` must be a KV cache type", None),
            (f"k = {K_LIMIT + 1}\n", f"`k` must be between 0 and {K_LIMIT}", None),
            ("tensor_split = [0, 0]\n", "has only shares of 0", None),
            ("tensor_split = 'a'\n", "must be shares per device", None),
            ("rpc = ['here']\n", "`here`, which is no host:port", None),
            ("rpc = ['here:99999999999']\n", "which is no host:port", None),
            ("logit_bias = ['5']\n", "`5`, which is neither ID+X", None),
            ("dry_sequence_breakers = ['']\n", "must be a list of strings, none empty", None),
            ("json_schema = '[1]'\n", "must be the text of a JSON object", None),
            ("theme = ''\n", "must be text, not empty", None),
            ("models_dir = 'models'\n", "must be an absolute path", None),
            ("grammar = 'a'\njson_schema = '{}'\n", "exclude each other", None),
            ("keymap = 3\n", "`keymap` must be a table", None),
            ("[keymap]\nreply.stop = 'x'\n", "`reply` must be keys", None),
            ("[keymap]\n'reply.stop' = 'a,,b'\n", "`reply.stop` must be keys separated by commas", None),
            ("a = \n", "line 1: invalid value", None),
        ],
    )
    def test_bad_values_name_file_and_key(self, file: Path, text: str, said: str, hint: str | None) -> None:
        """Known fault 87: a typo is an error that suggests the right key, never ignored."""
        error = refusal(file, text)
        assert error.exit_code == 2
        assert said in error.message
        assert str(file) in error.message
        assert "\n" not in error.message
        if hint:
            assert error.hint == hint

    def test_a_bad_variable_is_named(self) -> None:
        with pytest.raises(UsageError, match="LOCALSPEC_PORT must be between 1 and 65535"):
            load_config({"LOCALSPEC_PORT": "0"})
        with pytest.raises(UsageError, match="LOCALSPEC_MMAP must be true or false, not an integer"):
            load_config({"LOCALSPEC_MMAP": "1"})

    def test_check_lists_every_problem(self, file: Path) -> None:
        file.write_text("port = 0\nthem = 'x'\ntop_k = 40\n")
        problems = check_config({"LOCALSPEC_CTX": "-1", "LOCALSPEC_THEM": "x"})
        assert len(problems) == 4
        for problem, said in zip(
            problems, ("`port`", "`them`", "LOCALSPEC_CTX", "LOCALSPEC_THEM"), strict=True
        ):
            assert said in problem.message
        file.write_text("top_k = 40\n")
        assert check_config({}) == ()

    def test_a_file_of_nonsense_is_given_up(self, file: Path) -> None:
        file.write_text("".join(f"nonsense{n} = 1\n" for n in range(9000)))
        assert len(check_config({})) == MAX_PROBLEMS

    def test_keymap_ids_are_checked_by_who_knows_them(self, file: Path) -> None:
        config = written(file, '[keymap]\n"reply.stpo" = "f9"\n')
        with pytest.raises(UsageError) as caught:
            check_keymap(config, ["reply.stop", "spec.toggle"])
        assert "`reply.stpo`" in caught.value.message
        assert caught.value.hint == "did you mean `reply.stop`?"
        check_keymap(config, ["reply.stpo"])


class TestShowing:
    def test_value_and_source_of_each(self, file: Path) -> None:
        file.write_text("ctx = 'auto'\ntheme = 'a'\n[keymap]\n'chat.quit' = 'f10'\n")
        config = load_config({"LOCALSPEC_TOP_K": "5"})
        rows = {row.key: (row.value, row.source) for row in config.rows({"load.n_batch": 2048})}
        assert set(rows) == {*SETTINGS, "keymap.chat.quit"}
        assert rows["ctx"] == (None, str(file))
        assert rows["top_k"] == (5, "LOCALSPEC_TOP_K")
        assert rows["batch"] == (2048, "default")
        assert rows["port"] == (8080, "default")
        assert rows["keymap.chat.quit"] == ("f10", str(file))


class TestRemembering:
    def test_one_key_changes_and_the_rest_stays(self, file: Path) -> None:
        file.write_text(FULL)
        set_key("theme", "gruvbox")
        assert file.read_text() == FULL.replace('"nord"', '"gruvbox"')
        set_key("seed", 7)
        set_key("keymap.reply.stop", "f9")
        set_key("keymap.spec.toggle", "f3")
        config = load_config({})
        assert (config.theme, config.sampling["seed"]) == ("gruvbox", 7)
        assert config.keymap == {"reply.stop": "f9", "spec.toggle": "f3"}
        assert "# my settings" in file.read_text()
        assert [path.name for path in file.parent.iterdir()] == ["config.toml"]

    def test_makes_the_file(self, home: Path) -> None:
        set_key("default_pair", "demo")
        assert (home / "config" / "config.toml").read_text() == 'default_pair = "demo"\n'

    @pytest.mark.parametrize(
        ("key", "value", "said"),
        [
            ("themes", "x", "unknown key `themes`"),
            ("port", 0, "`port` must be between"),
            ("theme", "", "not empty"),
            ("keymap.a", "", "must be keys"),
            ("keymap", "x", "must be a table"),
        ],
    )
    def test_bad_settings_are_not_written(self, file: Path, key: str, value: object, said: str) -> None:
        with pytest.raises(UsageError) as caught:
            set_key(key, value)
        assert said in caught.value.message
        assert file.read_text() == ""

    def test_a_broken_file_is_left_alone(self, file: Path) -> None:
        file.write_text("theme = \n")
        with pytest.raises(UsageError, match="line 1"):
            set_key("theme", "x")
        assert file.read_text() == "theme = \n"

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "plain").write_text("")
        with pytest.raises(LocalspecError):
            set_key("theme", "x", tmp_path / "plain" / "config.toml")

    @given(st.text(min_size=1).filter(lambda text: text.strip() and "\0" not in text))
    def test_any_text_is_remembered(self, text: str) -> None:
        set_key("theme", text)
        set_key("device", text)
        config = load_config({})
        assert (config.theme, config.load["device"]) == (text, text)


def test_mutated_settings_are_read_right_or_refused_in_a_sentence(
    file: Path, soak: Callable[[int, int], int]
) -> None:
    """Never a crash, a hang or an unchecked value."""
    rng = random.Random(9)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(soak(500, 10_000)):
        file.write_bytes(mutated(FULL, rng))
        begin = time.process_time()
        try:
            config = load_config({})
        except UsageError as error:
            outcomes["refused"] += 1
            assert "config.toml" in error.message
            assert len(error.message) < 600
            assert "\n" not in error.message
        else:
            outcomes["read"] += 1
            assert 1 <= config.port <= 65535
            assert 1 <= (config.load.get("n_ctx") or 1) < 2**31
            assert config.load.get("kv", KV_TYPES)[0] in KV_TYPES
            engine.SamplingSettings(**config.sampling)
        assert time.process_time() - begin < 2
    assert outcomes["read"] > 20
    assert outcomes["refused"] > 100
