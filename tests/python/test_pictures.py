"""The committed pictures in docs/ equal those that `make pictures` draws from this daemon's decisions and the
simulator's runs."""

import os
import pathlib
import re
import subprocess
import sys
import xml.dom.minidom

import pytest

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", DOCS.parent / "target"))


def test_pictures_match_decisions(daemon, tmp_path):
    subprocess.run([sys.executable, DOCS / "pictures/draw.py", daemon.binary, tmp_path], check=True)
    drawn = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_bytes() for path in (DOCS / "pictures").glob("*.svg")}
    assert sorted(drawn) == sorted(committed)
    outdated = [name for name in drawn if drawn[name] != committed[name]]
    assert outdated == [], "run `make pictures`, look at them, and commit them"


@pytest.mark.simulated
@pytest.mark.parametrize("what", ["shedding", "fleet"])
def test_pictures_match_the_simulator(what, tmp_path):
    script, tables = DOCS / f"pictures/{what}.py", TARGET / "tmp" / what
    assert tables.is_dir(), "no tables: `make nightly-fleet` has the simulator write them"
    subprocess.run([sys.executable, script, tables, tmp_path], check=True)
    drawn = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_bytes() for path in (DOCS / "pictures" / what).glob("*.svg")}
    assert sorted(drawn) == sorted(committed)
    outdated = [name for name in drawn if drawn[name] != committed[name]]
    assert outdated == [], "run `make pictures`, look at them, and commit them"


@pytest.mark.nightly
def test_the_picture_of_the_demo_is_one_of_its_runs(daemon, tmp_path):
    """But for numbers and times, and for the lines that come in one tenth of a second."""
    subprocess.run([sys.executable, DOCS / "pictures/terminal.py", daemon.binary, tmp_path], check=True, timeout=300)

    def lines(directory):
        text = (directory / "quotas.svg").read_text(encoding="utf-8")
        return [re.sub(r"\d+| +", "#", line) for line in re.findall(r"<text.*?</text>", text)]

    assert lines(tmp_path) == lines(DOCS / "pictures/demo")


def test_every_picture_is_shown_and_every_shown_one_is_there():
    shown = set(re.findall(r"\(pictures/([a-z_]+\.svg)\)", (DOCS / "algorithms.md").read_text(encoding="utf-8")))
    assert shown == {path.name for path in (DOCS / "pictures").glob("*.svg")}


def test_pictures_are_small_and_self_contained():
    for path in (DOCS / "pictures").rglob("*.svg"):
        text = path.read_text(encoding="utf-8")
        root = xml.dom.minidom.parseString(text).documentElement
        assert root.tagName == "svg" and root.getElementsByTagName("title"), path.name
        assert len(text) <= 16_384 and "prefers-color-scheme:dark" in text, path.name
        assert "href" not in text and "<script" not in text, path.name
