"""The pages: each is in the map and in the book, and every link has a target."""

from __future__ import annotations

import functools
import html.parser
import json
import os
import re
from pathlib import Path

import pytest
from tidegate.protocol import decode

from tools import PROJECT, need, run

PAGES = sorted([*(PROJECT / "docs").rglob("*.md"), *PROJECT.glob("*.md"), *(PROJECT / "clients").glob("*/README.md")])
PAGES_OF_DOCS = {str(page.relative_to(PROJECT / "docs")) for page in (PROJECT / "docs").rglob("*.md")} - {"SUMMARY.md"}


@functools.cache
def prose(page: Path) -> str:
    """Without code blocks, which contain no links."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)


@functools.cache
def headings(page: Path) -> set[str]:
    """Returns the fragments of headings: their lower-case letters, digits and hyphens."""
    found = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", each)).strip().lower().replace(" ", "-") for each in found}


def faults(page: Path) -> list[str]:
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_file():
            wrong.append(f"{link}: there is no such file")
        elif fragment and target.suffix == ".md" and fragment not in headings(target):
            wrong.append(f"{link}: no heading of {target.name} is called that")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(PROJECT)) for page in PAGES])
def test_every_link_has_a_target(page: Path) -> None:
    assert not faults(page)


def test_the_map_has_every_page_once() -> None:
    rows = re.findall(r"^\| \[[^\]]+\]\(([^)#]+)\) \| \S", (PROJECT / "docs/README.md").read_text(), re.M)
    pages = PAGES_OF_DOCS - {"README.md"}
    assert sorted(row for row in rows if not row.startswith("..")) == sorted(pages)


def test_the_book_has_every_page_once() -> None:
    listed = re.findall(r"\]\(([^)]+)\)", (PROJECT / "docs/SUMMARY.md").read_text())
    assert sorted(each for each in listed if not each.startswith("..")) == sorted(PAGES_OF_DOCS)
    assert {(PROJECT / "docs" / each).resolve() for each in listed} == {*PAGES} - {PROJECT / "docs/SUMMARY.md"}


class Page(html.parser.HTMLParser):
    """The links and anchors of a page of the book."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links, self.anchors = list[str](), set[str]()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name == "id":
                self.anchors.add(value)
            elif value and (tag, name) in (("a", "href"), ("img", "src")) and not re.match(r"[a-z]+:", value):
                self.links.append(value)


@pytest.mark.xdist_group("book")
def test_every_link_of_the_book_has_a_target(tmp_path: Path) -> None:
    """In the built book, where mdbook is installed."""
    need("mdbook", "git")
    run("make", "-s", "book", cwd=PROJECT, env=os.environ | {"CARGO_TARGET_DIR": str(tmp_path)})
    root = tmp_path / "book/html"
    pages = {path: Page(path) for path in root.rglob("*.html") if path.name not in ("404.html", "toc.html")}
    assert len(pages) == len(PAGES), "the summary is none; index.html is the first page again"
    wrong = []
    for page, found in pages.items():
        for link in found.links:
            path, _, fragment = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.is_file():
                wrong.append(f"{page.relative_to(root)}: {link}: there is no such file")
            elif fragment and target in pages and fragment not in pages[target].anchors:
                wrong.append(f"{page.relative_to(root)}: {link}: no such anchor")
    assert wrong == []


def test_finds_a_wrong_link(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A b, `c`\n[x](b.md) [y](#a-b-c) [z](#a-c) [w](https://example.com/q)\n```\n[v](u)\n```\n")
    assert [each.split(":")[0] for each in faults(tmp_path / "a.md")] == ["b.md", "#a-c"]


def test_frames_of_the_protocol_are_golden() -> None:
    vectors = {each["name"]: each["hex"] for each in json.loads((PROJECT / "tests/vectors/good.json").read_text())}
    blocks = re.findall(r"^```text\n(.*?)^```", (PROJECT / "docs/protocol.md").read_text(), re.M | re.S)
    frames = [frame.split("\n") for block in blocks for frame in block.strip().split("\n\n")]
    assert len(frames) > 20
    for name, shown, payload in frames:
        assert shown.replace(" ", "") == vectors[name], name
        assert json.loads(payload) == decode(bytes.fromhex(vectors[name][8:])), name
