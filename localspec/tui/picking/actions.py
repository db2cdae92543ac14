"""Everything the picker can do, once: keys, footer, palette and help are made from this table."""

from __future__ import annotations

from localspec.tui.actions import Action

PICKER_ACTIONS: tuple[Action, ...] = (
    Action("picker.use", "Use this pair, and from now on by default", "enter", footer="use"),
    Action("picker.demo", "Use the embedded demo pair: no download, no network", "e", footer="demo"),
    Action("picker.context", "Next context length", "c", footer="ctx"),
    Action("picker.context_ask", "Type a context length", "C"),
    Action("picker.kv", "Next type of KV cache", "k", footer="kv"),
    Action("picker.budget", "Next memory: simulated cards, then this machine", "b", footer="budget"),
    Action("picker.budget_ask", "Type a memory size to simulate", "B"),
    Action("picker.filter", "Filter by name, fit, method, licence or state", "slash", "", "", "filter", True),
    Action("picker.sort", "Next order of the rows", "s", footer="sort"),
    Action("picker.download", "Download this pair; size and free disk are shown first", "d", footer="get"),
    Action("picker.pause", "Pause its download", "p"),
    Action("picker.resume", "Resume its download", "r"),
    Action("picker.cancel", "Cancel its download, delete its files, or forget a pair of your own", "x"),
    Action("picker.headers", "Read the headers from the hub: exact figures and the verdict", "h"),
    Action("picker.add", "Add a pair: paths, or owner/repo:file", "a"),
    Action("picker.scan", "Scan this disk for GGUF files", "S"),
    Action("picker.drafts", "Which drafts match this target?", "D"),
    Action("picker.help", "Help: keys of this screen", "question_mark,f1", footer="help"),
    Action("picker.theme", "Choose a theme"),
    Action("picker.leave", "Clear the filter, else leave", "escape"),
)
"""Bare letters: they reach the picker only while no text field has focus. The key of the filter comes first,
so that the letters typed after it, however fast, are its text."""

PICKER_BY_ID: dict[str, Action] = {action.id: action for action in PICKER_ACTIONS}
