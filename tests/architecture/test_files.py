"""Files stay short, say what they are for, and docs/architecture.md names each of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "easyscale"
SOURCES = sorted(SOURCE.rglob("*.py"))
MAX_LINES = 300

by_path = pytest.mark.parametrize("path", SOURCES, ids=[str(path.relative_to(SOURCE)) for path in SOURCES])


@by_path
def test_a_file_opens_with_what_it_is_for(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring, f"{path} has no docstring: say what it is for, which process runs it, what it promises"


@by_path
def test_a_file_is_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= MAX_LINES, f"{path} has {lines} lines: split it where two subjects meet"


def test_the_tree_in_the_docs_is_the_tree_on_disk() -> None:
    """A folder's line stands for its ``__init__.py``."""
    named = set(_named_in_docs())
    packages = {path.parent for path in SOURCES if path.name == "__init__.py"} - {SOURCE}
    on_disk = {path for path in SOURCES if path.parent not in packages or path.name != "__init__.py"}
    on_disk |= packages | {SOURCE / "py.typed"}
    missing, gone = sorted(map(str, on_disk - named)), sorted(map(str, named - on_disk))
    assert not missing, f"docs/architecture.md has no line for {', '.join(missing)}"
    assert not gone, f"docs/architecture.md names {', '.join(gone)}, which do not exist"


def test_every_entry_of_the_tree_has_a_phrase() -> None:
    bare = [line.strip() for line in _tree_lines() if len(line.split(None, 1)) < 2]
    assert not bare


def test_links_in_the_docs_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


def _tree_lines() -> list[str]:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = re.search(r"^```\nsrc/easyscale/\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert block, "docs/architecture.md has no code block that opens with src/easyscale/"
    return block[1].splitlines()


def _named_in_docs() -> Iterator[Path]:
    """Paths of the tree; two spaces of indentation lead one folder down."""
    folders = [SOURCE]
    for line in _tree_lines():
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        del folders[depth:]
        path = folders[-1] / name.rstrip("/")
        if name.endswith("/"):
            folders.append(path)
        yield path
