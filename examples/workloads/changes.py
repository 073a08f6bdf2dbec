"""Counts the lines in which each workload differs from its plain DDP twin; with a name, shows them."""

import difflib
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def difference(name: str) -> list[str]:
    """The changed lines, each with its sign; docstrings and empty lines are not counted."""
    twin, script = (code_of(FOLDER / f"{name}{ending}.py") for ending in ("_ddp", ""))
    return [line for line in difflib.unified_diff(twin, script, lineterm="", n=0) if line[:3] not in ("---", "+++")]


def code_of(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines()[1:] if line]


def names() -> list[str]:
    return sorted(path.stem.removesuffix("_ddp") for path in FOLDER.glob("*_ddp.py"))


def main() -> None:
    if len(sys.argv) > 1:
        print(*difference(sys.argv[1]), sep="\n")
        return
    print("| workload | lines | taken away | added |\n|---|---|---|---|")
    for name in names():
        lines = difference(name)
        gone, come = (sum(line.startswith(sign) for line in lines) for sign in "-+")
        print(f"| {name} | {len(code_of(FOLDER / f'{name}.py'))} | {gone} | {come} |")


if __name__ == "__main__":
    main()
