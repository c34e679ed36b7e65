"""Each page of docs/migrate, followed: tidegate beside the old limiter, compared, switched to, and back."""

import importlib.metadata
import re

import pytest

from needs import ROOT, need
from reader import agrees, blocks, commands

PAGES = ROOT / "docs/migrate"


def work_through(reader, name, **needs):
    need(programs=("curl", *needs.pop("programs", ())), **needs)
    assert reader.read((PAGES / name).read_text()) > 15


def speaks_of(name, *distributions):
    """The page names the tested versions."""
    page = (PAGES / name).read_text()
    assert all(f"{each} {importlib.metadata.version(each)}" in page for each in distributions)


@pytest.mark.nightly
def test_flask_limiter(reader):
    work_through(reader, "flask-limiter.md", modules=["flask_limiter", "gunicorn"])
    speaks_of("flask-limiter.md", "Flask-Limiter", "limits")


@pytest.mark.nightly
def test_slowapi(reader):
    work_through(reader, "slowapi.md", modules=["slowapi", "fastapi", "uvicorn"])
    speaks_of("slowapi.md", "slowapi", "limits")


@pytest.mark.nightly
def test_django_ratelimit(reader):
    work_through(reader, "django-ratelimit.md", modules=["django_ratelimit", "gunicorn"])
    speaks_of("django-ratelimit.md", "django-ratelimit")


def test_rack_attack(reader):
    work_through(reader, "rack-attack.md", programs=["ruby", "puma"], libraries=["rack/attack", "active_support"])


def test_finds_wrong_pages(reader):
    """Every form of a page works, and a wrong word in any of them is found."""
    page = "# P\n```sh\nfalse\n```\n```text\nno\n```\n```yaml\n# a/b.yaml\nx: 8000\n```\n"
    page += "```go\n// a/c.go\npackage c\n```\n"
    page += "```console\n$ tail -n 1 a/c.go\npackage c\n$ cat \\\n    a/b.yaml\n…\nx: 8000\n```\n"
    assert [block.kind for block in blocks(page)] == ["sh", "text", "yaml", "go", "console"]
    assert commands("$ a \\\n  b\nc\n$ d\n") == [("a b", ["c"]), ("d", [])]
    assert reader.read(page) == 2
    with pytest.raises(AssertionError, match="the page shows:\npackage d"):
        reader.read(page.replace("1 a/c.go\npackage c", "1 a/c.go\npackage d"))
    with pytest.raises(AssertionError, match="the page shows:\nx: 9"):
        reader.read(page.replace("x: 8000\n```\n", "x: 9\n```\n").replace("…\n", ""))
    for shown, output, right in ((["a … d"], "a b c d", True), (["…", "z"], "a\nb\nz", True), (["…"], "", True),
                               (["a"], "a\nb", False), (["a.b"], "axb", False), ([], "a", False)):  # fmt: skip
        assert agrees(shown, output) is right


def sections():
    return re.split("^(?=## )", (ROOT / "docs/quickstart.md").read_text(), flags=re.M)


def test_quickstart(reader):
    need(
        programs=("curl", "go", "puma", "ruby"),
        modules=("django", "fastapi", "flask", "gunicorn", "uvicorn"),
        libraries=("logger", "action_controller/railtie"),
    )
    assert reader.read("".join(each for each in sections() if not each.startswith("## Express"))) > 15


def test_quickstart_of_express(reader):
    need(programs=("curl", "node"))
    client = ROOT / "clients/node"
    if not (client / "dist").is_dir() or not (client / "node_modules/express").is_dir():
        pytest.skip("the Node.js client is not built (make test-node)")
    packages = reader.directory / "node_modules"
    packages.mkdir()
    (packages / "tidegate").symlink_to(client)
    (packages / "express").symlink_to(client / "node_modules/express")
    assert reader.read("".join(each for each in sections() if re.match("## (The daemon|Express)", each))) == 4


def test_faq(reader):
    assert reader.read((ROOT / "docs/faq.md").read_text()) == 4
