"""What the picker's keys do. One that asks or waits is a coroutine, run in a worker of the screen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from localspec.catalog import DEMO
from localspec.errors import LocalspecError, UsageError
from localspec.planning import PairPlan
from localspec.tui.background import in_background
from localspec.tui.picking.actions import PICKER_ACTIONS
from localspec.tui.picking.question import MACHINE, Question, after
from localspec.tui.picking.rows import GIB, ORDERS, Row
from localspec.tui.picking.services import Parcel, Picked
from localspec.tui.screens.dialogs import AskText, Confirm
from localspec.tui.screens.forms import AddPair, Choose, NewPair
from localspec.tui.screens.help import HelpScreen
from localspec.tui.text import one_line

if TYPE_CHECKING:
    from localspec.tui.screens.picker import PickerScreen

Handler = Callable[["PickerScreen"], Awaitable[None] | None]
FIRST = "No model yet. e: embedded demo, no network · d: download · b: choose your card"
"""What a first visit is told."""


def _marked(screen: PickerScreen) -> Row:
    row = screen.current
    if row is None:
        raise UsageError("no pair is marked")
    return row


# -- pick -----------------------------------------------------------------------------------------


async def use(screen: PickerScreen) -> None:
    await _use(screen, _marked(screen))


async def demo(screen: PickerScreen) -> None:
    row = screen.row(DEMO)
    if row is None:
        raise UsageError("the demo pair is not listed yet", hint="wait for the list, then try again")
    await _use(screen, row)


async def _use(screen: PickerScreen, row: Row) -> None:
    """Make a pair the default and, in a chat, load it; what does not fit here only when insisted on."""
    if not row.installed:
        await _download(screen, row)
        return
    load = screen.question.load
    # A simulated card says nothing about this machine.
    here = await in_background(lambda: screen.services.detail(row.name, Question(MACHINE, load)))
    force = here.fit == "too big"
    if force and not await _sure(screen, _too_big(here)):
        return
    if not force:
        screen.services.set_default(row.name)
    if screen.in_chat:
        screen.dismiss(Picked(row.name, load, force))
    elif force:
        screen.tell(f"start it with: localspec chat {row.name} --force")
    else:
        screen.tell(f"{row.name} is the default now: `localspec` chats with it, Esc leaves")


def _too_big(plan: PairPlan) -> str:
    short = min(plan.devices, key=lambda device: device.spare_bytes)
    where = "RAM" if short.kind == "cpu" else short.name
    would = "".join(f"\nWould help: {suggestion.text}." for suggestion in plan.suggestions[:3])
    return (
        f"{plan.name} does not fit: it needs {short.needed_bytes / GIB:.1f} GiB of {where}, "
        f"{short.usable_bytes / GIB:.1f} GiB are free for it here.{would}\nLoad anyway?"
    )


async def _sure(screen: PickerScreen, question: str) -> bool:
    sure: bool = await screen.app.push_screen_wait(Confirm(question))
    return sure


# -- the question ---------------------------------------------------------------------------------


def context(screen: PickerScreen) -> None:
    screen.ask(screen.question.next_context())


async def context_ask(screen: PickerScreen) -> None:
    text = await _text(screen, "Context length in tokens: 32768 or 32k", str(screen.question.n_ctx))
    if text is not None:
        screen.ask(screen.question.with_context(text))


def kv(screen: PickerScreen) -> None:
    screen.ask(screen.question.next_kv())


def budget(screen: PickerScreen) -> None:
    screen.ask(screen.question.next_budget())


async def budget_ask(screen: PickerScreen) -> None:
    title = "Memory to simulate: 24GB-card, 20GiB, …; empty: this machine"
    text = await _text(screen, title, screen.question.budget or "")
    if text is not None:
        screen.ask(screen.question.with_budget(text))


async def _text(screen: PickerScreen, title: str, text: str) -> str | None:
    return await screen.app.push_screen_wait(AskText(title, text))


# -- the list -------------------------------------------------------------------------------------


def filter_(screen: PickerScreen) -> None:
    screen.filter_field.display = True
    screen.set_focus(screen.filter_field)  # now: what is typed next is its text


def sort(screen: PickerScreen) -> None:
    screen.order = after(tuple(ORDERS), screen.order)


def leave(screen: PickerScreen) -> None:
    if screen.filter_field.value or screen.filter_field.has_focus:
        screen.filter_field.value = ""
        screen.table.focus()
    elif screen.in_chat:
        screen.dismiss(None)
    else:
        screen.app.exit()


def help_(screen: PickerScreen) -> None:
    screen.app.push_screen(HelpScreen(screen.focused, screen.services.config.keymap, PICKER_ACTIONS))


def theme(screen: PickerScreen) -> None:
    screen.app.search_themes()


async def headers(screen: PickerScreen) -> None:
    row, question = _marked(screen), screen.question
    screen.tell(f"reading the headers of {row.name}…")
    screen.keep(
        question, await in_background(lambda: screen.services.detail(row.name, question, online=True))
    )


# -- downloads ------------------------------------------------------------------------------------


async def download(screen: PickerScreen) -> None:
    await _download(screen, _marked(screen))


async def _download(screen: PickerScreen, row: Row) -> None:
    """Say what would be fetched and what room there is, then queue it."""
    if row.installed:
        screen.tell(f"{row.name} is on this disk already")
        return
    if row.transfer is not None:
        screen.downloads.resume(row.name)
        return
    screen.tell(f"asking the hub for {row.name}…")
    question = screen.question
    parcel = await in_background(lambda: screen.services.parcel(row.name, question))
    if parcel.lacking:
        raise UsageError(
            f"{row.name} does not fit on the disk: {_gib(parcel.missing)} to fetch, {_gib(parcel.free)} free",
            hint="free some space, or move the models with LOCALSPEC_MODELS_DIR",
        )
    if await _sure(screen, _announcement(screen, parcel)):
        screen.downloads.add(parcel.order.unit)
        screen.services.ordered(parcel.order)


def _announcement(screen: PickerScreen, parcel: Parcel) -> str:
    lines = [f"Download {parcel.plan.name}: {_gib(parcel.size)} in {len(parcel.order.unit.files)} files?"]
    lines += [f"  {file}" for file in parcel.order.unit.files]
    if parcel.fetched:
        lines.append(f"{_gib(parcel.fetched)} of it are here already.")
    lines.append(
        f"To {screen.services.models_dir}: {_gib(parcel.free)} free, {_gib(parcel.left)} afterwards."
    )
    plan = parcel.plan
    lines.append(f"With {screen.question.memory}, {screen.question.text}: {plan.fit}, {plan.needed_text}.")
    if plan.verdict_text:
        lines.append(f"Draft: {one_line(plan.verdict_text, 120)}.")
    lines += plan.notes
    if any(model.gated for model in parcel.order.pair.files):
        lines.append("Gated: accept the licence on the hub and set HF_TOKEN first.")
    return "\n".join(lines)


def _gib(size: int | None) -> str:
    return "an unknown size" if size is None else f"{size / GIB:.2f} GiB"


def _meant(screen: PickerScreen) -> str:
    """The unit that a key about downloads means: marked in the list of downloads, else in the table."""
    if screen.download_list.has_focus and screen.download_list.marked:
        return screen.download_list.marked
    return _marked(screen).name


def _running(screen: PickerScreen) -> str:
    name = _meant(screen)
    if screen.downloads.transfer(name) is None:
        raise UsageError(f"{name} is not being downloaded", hint="d starts a download")
    return name


def pause(screen: PickerScreen) -> None:
    screen.downloads.queue.pause(_running(screen))


def resume(screen: PickerScreen) -> None:
    screen.downloads.resume(_running(screen))


async def cancel(screen: PickerScreen) -> None:
    """Cancel a download, delete what is installed, or forget a pair of the user's own; only after a yes."""
    name = _meant(screen)
    transfer = screen.downloads.transfer(name)
    if transfer is not None:
        fetched = f" and remove {_gib(transfer.done)}" if transfer.done else ""
        if await _sure(screen, f"Cancel the download of {name}{fetched}?"):
            screen.downloads.queue.cancel(name)
        return
    row = _marked(screen)
    here = row.plan.state != "not downloaded"
    files = screen.services.removable(row.name) if here else ()
    if files:
        listed = "\n".join(f"  {file}" for file in files)
        question = f"Delete these files of {row.name} from this disk?\n{listed}"
    elif screen.services.has_row(row.name):
        question = f"Forget {row.name}? Its row is taken out of your models file; no file is deleted."
    else:
        raise UsageError(f"{row.name} has no downloaded file that no other pair needs")
    if await _sure(screen, question):
        done = await in_background(lambda: screen.services.delete(row.name, keep_row=bool(files)))
        kept = f", kept {len(done.kept)} that other pairs need" if done.kept else ""
        told = f"deleted {len(done.removed)} files of {row.name}{kept}"
        screen.tell(f"forgot {row.name}" if done.rows else told)
        screen.services.reload()
        screen.plan()


# -- new pairs ------------------------------------------------------------------------------------


async def add(screen: PickerScreen) -> None:
    await _add(screen, NewPair())


async def _add(screen: PickerScreen, given: NewPair) -> None:
    wanted = await screen.app.push_screen_wait(AddPair(given))
    if wanted is None:
        return
    screen.tell("reading the headers…")
    services = screen.services
    try:
        told = await in_background(lambda: services.add(wanted.name, wanted.target, wanted.draft))
    except LocalspecError as error:
        screen.tell_error(error)
        await _add(screen, wanted)  # what was typed is not lost
        return
    screen.tell(f"added {wanted.name}: {told}")
    screen.plan(mark=wanted.name)


async def scan(screen: PickerScreen) -> None:
    """List the GGUF files on this disk; one becomes the target of a new pair."""
    screen.tell("looking through this disk…")
    found = await in_background(screen.services.scan)
    rows = [
        (file.path.name, file.error or f"{file.kind} {file.quant}", _gib(file.size_bytes), file.where)
        for file in found
    ]
    empty = "no GGUF file in the models folder, nor in those of Hugging Face, LM Studio and llama.cpp"
    title = "GGUF files on this disk: choose a target"
    question = Choose(title, ("file", "what", "size", "where"), rows, empty)
    chosen = await screen.app.push_screen_wait(question)
    if chosen is not None:
        await _add(screen, NewPair(target=str(found[chosen].path)))


async def drafts(screen: PickerScreen) -> None:
    """List drafts for the marked target, best first; one makes a new pair."""
    row = _marked(screen)
    screen.tell(f"comparing vocabularies with {row.plan.target}…")
    found = await in_background(lambda: screen.services.drafts(row.name))
    rows = [
        (
            one.name, one.status or "not compared", "this disk" if one.local else "hub", one.kind,
            _gib(one.size_bytes), one.reason,
        )
        for one in found
    ]  # fmt: skip
    columns = ("draft", "verdict", "where", "kind", "size", "why")
    empty = "none is known; n-grams still speed up text that repeats its prompt"
    question = Choose(f"Drafts for {row.plan.target}", columns, rows, empty)
    chosen = await screen.app.push_screen_wait(question)
    if chosen is not None:
        one = found[chosen]
        await _add(screen, NewPair(target=row.plan.target, draft=one.place if one.local else one.name))


HANDLERS: dict[str, Handler] = {
    "picker.use": use,
    "picker.demo": demo,
    "picker.context": context,
    "picker.context_ask": context_ask,
    "picker.kv": kv,
    "picker.budget": budget,
    "picker.budget_ask": budget_ask,
    "picker.filter": filter_,
    "picker.sort": sort,
    "picker.download": download,
    "picker.pause": pause,
    "picker.resume": resume,
    "picker.cancel": cancel,
    "picker.theme": theme,
    "picker.headers": headers,
    "picker.add": add,
    "picker.scan": scan,
    "picker.drafts": drafts,
    "picker.help": help_,
    "picker.leave": leave,
}
