"""TOML with places in its errors, and one key changed without losing the rest."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.errors import UsageError
from localspec.tomlfile import (
    MAX_BYTES,
    Table,
    key_toml,
    parse_toml,
    read_toml,
    shortened,
    to_toml,
    with_value,
    without_table,
)

CONFIG = """\
# my settings
theme = "nord"  # it's the "best" # really
'notices' = true

# keys
[keymap]
"reply.stop" = "escape"
# the end
"""


class TestReading:
    def test_absent_file_is_empty(self, tmp_path: Path) -> None:
        assert read_toml(tmp_path / "none.toml") == {}

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (b"a = 1\nb = \n", "line 2: invalid value"),
            (b"a = 1\na = 2\n", "line 2: cannot overwrite a value"),
            (b"[t]\nx = 1\n[t]\n", "line 3: cannot declare"),
            (b'a = "x', "end of document: unterminated string"),
            (b"a = 1\nb = \xff\n", "line 2: not UTF-8 text"),
            (b"a = " + b"[" * 5000, "nested too deeply"),
            (b"a = " + b"9" * 5000, "limit"),
            (b"a = 1\nb" + b".a" * 100_000 + b" = 1", "line 2: a key of more than 32 parts"),
            (b"[a" + b" . 'b'" * 40 + b"]", "line 1: a key of more than 32 parts"),
            (b"a = { x" + b".y" * 40 + b" = 1 }", "line 1: a key of more than 32 parts"),
            (b"#" * (MAX_BYTES + 1), f"larger than {MAX_BYTES} bytes"),
        ],
    )
    def test_malformed_files_name_file_and_line(self, tmp_path: Path, text: bytes, said: str) -> None:
        path = tmp_path / "x.toml"
        path.write_bytes(text)
        with pytest.raises(UsageError) as caught:
            read_toml(path)
        assert str(path) in caught.value.message
        assert said in caught.value.message.lower() or said in caught.value.message
        assert caught.value.exit_code == 2

    def test_dots_that_are_no_key(self, tmp_path: Path) -> None:
        path = tmp_path / "x.toml"
        path.write_text(f"# {'.' * 200}\na = '{'. ' * 200}'\nb.c.d = [{'1.5, ' * 200}]\n")
        assert read_toml(path)["b"]["c"]["d"] == [1.5] * 200

    def test_byte_order_mark_and_other_line_ends(self, tmp_path: Path) -> None:
        path = tmp_path / "x.toml"
        path.write_bytes(b"\xef\xbb\xbfa = 1\r\nb = 2\r\n")
        assert read_toml(path) == {"a": 1, "b": 2}

    def test_folder_in_place_of_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="cannot read"):
            read_toml(tmp_path)

    def test_table_names_the_nearest_key(self) -> None:
        with pytest.raises(UsageError) as caught:
            Table({"naem": 1}, "f", "t", ("name", "size"))
        assert caught.value.message == "`f`: [t] has no key `naem`"
        assert caught.value.hint == "did you mean `name`?"
        with pytest.raises(UsageError) as caught:
            Table({"zzz": 1}, "f", "t", ("name", "size"))
        assert caught.value.hint == "known: name, size"

    def test_messages_hold_one_short_line(self) -> None:
        assert shortened("a\nb\x1b[31m" + "x" * 100) == "a·b·[31m" + "x" * 51 + "…"


class TestWriting:
    def test_replaces_a_value_and_keeps_its_comment(self) -> None:
        assert with_value(CONFIG, "", "theme", "gruvbox", "f") == CONFIG.replace('"nord"', '"gruvbox"')

    def test_finds_a_quoted_key(self) -> None:
        assert with_value(CONFIG, "", "notices", False, "f") == CONFIG.replace(
            "'notices' = true", "notices = false"
        )

    def test_adds_a_key_before_the_next_table_and_its_comment(self) -> None:
        edited = with_value(CONFIG, "", "port", 99, "f")
        assert edited == CONFIG.replace("= true\n", "= true\nport = 99\n")

    def test_adds_to_a_table_and_makes_one(self) -> None:
        edited = with_value(CONFIG, "keymap", "reply.stop", "f9", "f")
        assert edited == CONFIG.replace('"escape"', '"f9"')
        assert with_value("a = 1\n", "keymap", "x.y", "f9", "f") == 'a = 1\n\n[keymap]\n"x.y" = "f9"\n'
        assert with_value("", "keymap", "k", "f9", "f") == '[keymap]\nk = "f9"\n'

    @pytest.mark.parametrize(
        "text",
        [
            "theme = '''\nnord'''\n",
            "x = '''\ntheme = 1'''\n[keymap]\n",
            "keymap = { a = 'b' }\n",
            "[a]\n[theme]\n",
        ],
    )
    def test_a_form_that_cannot_be_edited_is_left_alone(self, text: str) -> None:
        key, table = ("a", "keymap") if "keymap =" in text else ("theme", "")
        try:
            edited = with_value(text, table, key, "z", "f")
        except UsageError as error:
            assert "by hand" in (error.hint or "")
        else:
            before, after = tomllib.loads(text), tomllib.loads(edited)
            assert after.pop("theme") == "z"
            before.pop("theme", None)
            assert before == after

    @given(
        st.dictionaries(
            st.text(min_size=1),
            st.recursive(
                st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text(),
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
                max_leaves=6,
            ),
        )
    )
    def test_values_read_back_as_written(self, document: dict[str, object]) -> None:
        text = "".join(f"{key_toml(key)} = {to_toml(value)}\n" for key, value in document.items())
        assert parse_toml(text, "f") == document

    @given(st.text(min_size=1), st.text(), st.sampled_from(["", "t", "t.u"]))
    def test_setting_a_key_changes_nothing_else(self, key: str, value: str, table: str) -> None:
        text = "# head\na = 1 # one\nb = [\n  2,\n]\n\n# tail\n[t]\nc = '#'\n"
        try:
            edited = with_value(text, table, key, value, "f")
        except UsageError as error:
            assert (table, key) in (("", "b"), ("", "t"))  # a value of many lines, and a table
            assert "by hand" in (error.hint or "")
            return
        for line in text.splitlines():
            if not line.startswith(f"{key} ="):
                assert line in edited.splitlines()
        found = parse_toml(edited, "f")
        assert (found[table] if table else found)[key] == value


ROWS = """\
# mine

# the large one
[models.big]
path = "/m/big.gguf"  # here

# a pair
# of two lines
[pairs.one]
target = "big"
[[pairs.one.evidence]]
source = "https://a"
[[pairs.one.evidence]]
source = "https://b"
# the second
[pairs."t w o"]
target = "big"
# the end
"""


class TestCuttingOut:
    def test_a_table_goes_with_its_sub_tables_and_its_own_comment(self) -> None:
        left = without_table(ROWS, ("pairs", "one"), "f")
        assert left == ROWS.replace(ROWS[ROWS.index("# a pair") : ROWS.index("# the second")], "")

    def test_a_quoted_name_and_the_last_table(self) -> None:
        left = without_table(ROWS, ("pairs", "t w o"), "f")
        assert left.endswith('source = "https://b"\n') and "# the second" not in left

    def test_nothing_may_be_left(self) -> None:
        assert without_table("[pairs.a]\nx = 1\n", ("pairs", "a"), "f") == ""

    @pytest.mark.parametrize(
        "text",
        [
            "pairs = { a = { x = 1 } }",
            "[pairs]\na = { x = 1 }",
            "[pairs.a]\nx = 1\n[pairs.b]\ny = [\n[1],\n]",
        ],
    )
    def test_a_form_that_cannot_be_cut_by_lines_is_left_alone(self, text: str) -> None:
        try:
            left = without_table(text, ("pairs", "a"), "f")
        except UsageError as error:
            assert "cannot take [pairs.a] out" in error.message and error.hint == "delete it by hand"
        else:
            assert tomllib.loads(left) == {"pairs": {"b": {"y": [[1]]}}}
