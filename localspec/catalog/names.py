"""Names of GGUF files: quantisation labels, renamed files, and one plain spelling for comparisons.

Repositories rename files and publish one model in many quantisations; a name is therefore a hint, and the
file that was meant is found again by its label. Knows nothing of contents.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_LABEL = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:I?Q[1-8]_(?:K(?:_(?:XXL|XL|L|M|S))?|[01]|XXS|XS|NL|XL|S|M)"
    r"|MXFP4(?:_MOE)?|NVFP4|TQ[12]_0|BF16|F16|F32))(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
_HEADS = ("mtp-", "eagle3-", "dflash-", "medusa-", "mmproj-")
_ENOUGH = 0.6
"""Similarity below which two names are different models."""


def quant_label(file: str) -> str | None:
    """The quantisation label in a file name, in upper case: `Q4_K_M`, `UD-Q4_K_XL`, `IQ4_XS`, `MXFP4`."""
    found = _LABEL.findall(file.rsplit("/", 1)[-1])
    return found[-1].upper() if found else None


def plain(name: str) -> str:
    """Lower case, words joined by dashes, no `.gguf`: the spelling deny rows match."""
    return re.sub(r"[\s_/]+", "-", name.strip().lower().removesuffix(".gguf"))


def match_file(wanted: str, listing: Iterable[str], quant: str | None = None) -> str | None:
    """The file of a repository that `wanted` means now.

    The exact path, else the same name in another case or folder, else the most similar file with the same
    quantisation label and role (a head is never taken for a model), else one whose name begins like it.

    Args:
        listing: paths in the repository.
        quant: label to look for when the file's name does not have it.

    Returns:
        The path (of a split file: its first part), or None when nothing fits or two fit equally well.
    """
    files = [file for file in listing if file.lower().endswith(".gguf") and _first_part(file)]
    if wanted in files:
        return wanted
    same = [file for file in files if _stem(file) == _stem(wanted)]
    if len(same) == 1:
        return same[0]
    label = quant_label(wanted) or (quant.upper() if quant else None)
    rivals = [file for file in files if _role(file) == _role(wanted)]
    labelled = [file for file in rivals if label and quant_label(file) == label]
    extended = [file for file in rivals if _stem(file).startswith(_stem(wanted))]
    return _closest(wanted, labelled) or (extended[0] if len(extended) == 1 else None)


def _closest(wanted: str, files: list[str]) -> str | None:
    scored = sorted(((_similarity(wanted, file), file) for file in files), reverse=True)
    if not scored or scored[0][0] < _ENOUGH:
        return None
    return None if len(scored) > 1 and scored[0][0] == scored[1][0] else scored[0][1]


def _similarity(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, _stem(one), _stem(other), autojunk=False).ratio()


def _first_part(file: str) -> bool:
    shard = _SHARD.search(file)
    return shard is None or int(shard[1]) == 1


def _stem(file: str) -> str:
    """The name without folder, part number and ending, in lower case."""
    return _SHARD.sub("", file.rsplit("/", 1)[-1]).lower().removesuffix(".gguf")


def _role(file: str) -> str:
    folder, _, name = file.lower().rpartition("/")
    prefix = next((head for head in _HEADS if name.startswith(head)), "")
    return prefix or ("mtp-" if folder.split("/")[-1] == "mtp" else "")
