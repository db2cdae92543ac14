"""Everything CI checks besides the tests, in one run: each check's verdict, then the size table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOFT_LINES, HARD_LINES = 400, 450
"""A file above the first is listed; one of the package above the second fails the check."""

MODULE = [sys.executable, "-m"]
LINT_IMPORTS = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(cache_dir=None))"
CHECKS: dict[str, list[str]] = {
    "ruff check": [*MODULE, "ruff", "check", "."],
    "ruff format --check": [*MODULE, "ruff", "format", "--check", "."],
    "mypy": [*MODULE, "mypy"],
    "lint-imports": [sys.executable, "-c", LINT_IMPORTS],
}


def long_files(root: Path) -> list[tuple[int, Path]]:
    """(lines, file) of every Python file above the soft limit, longest first."""
    files = [path for folder in ("localspec", "tests", "scripts") for path in (root / folder).rglob("*.py")]
    sized = [(len(path.read_text(encoding="utf-8").splitlines()), path.relative_to(root)) for path in files]
    return sorted((row for row in sized if row[0] > SOFT_LINES), reverse=True)


def main() -> int:
    failed = []
    for name, command in CHECKS.items():
        print(f"== {name}", flush=True)
        if subprocess.run(command, cwd=ROOT).returncode:
            failed.append(name)
    print(f"== files above {SOFT_LINES} lines (limit {HARD_LINES})")
    rows = long_files(ROOT)
    for lines, path in rows:
        print(f"{lines:6} {path}")
    if any(lines > HARD_LINES and path.parts[0] == "localspec" for lines, path in rows):
        failed.append("file size")
    print("check: " + (f"FAILED: {', '.join(failed)}" if failed else "all good"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
