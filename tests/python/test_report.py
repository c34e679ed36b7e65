"""The page of `tidegate replay --report`: by the HTML standard always, and in Chromium if installed."""

import json
import os
import pathlib
import re
import subprocess

import html5lib
import pytest

from browser import CHROMIUM, Browser

TIDEGATE = os.environ.get("TIDEGATE_BIN", pathlib.Path(__file__).resolve().parents[2] / "target/debug/tidegate")
HOSTILE = "</bdi></svg><script>document.title = 'harmed'</script><img src=x onerror=alert(1)>\u202e"
RULES = """\
domain: api
limits:
  - {name: "a <b> & c", key: [user], rate: 20/min, burst: 5}
  - {name: per-address, key: [ip], rate: 1000/s, mode: shadow}
  - {name: unasked, key: [nobody], rate: 1/s}
"""
STRICTER = RULES.replace("20/min", "10/min").replace("unasked", "only-here")


def line(second):
    user = HOSTILE if second % 5 == 0 else f"u{second % 97}"
    described = ["user", user, "ip", f"192.0.2.{second % 200}"]
    return json.dumps({"t": 1_732_183_201 + second // 3, "domain": "api", "descriptors": [described]})


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Pages of one rule set, of two, and of a trace without events."""
    home = tmp_path_factory.mktemp("reports")
    (home / "api.yaml").write_text(RULES)
    (home / "stricter.yaml").write_text(STRICTER)
    (home / "trace.jsonl").write_text("\n".join(map(line, range(3_000))))
    (home / "empty.jsonl").write_text("")
    pages = {
        "one": ["trace.jsonl"],
        "two": ["trace.jsonl", "--compare", "stricter.yaml"],
        "empty": ["empty.jsonl"],
    }
    for name, arguments in pages.items():
        command = [TIDEGATE, "replay", *arguments, "--rules", "api.yaml", "--report", f"{name}.html"]
        subprocess.run(command, cwd=home, check=True, capture_output=True)
    return {name: home / f"{name}.html" for name in pages}


PAGES = ["one", "two", "empty"]


@pytest.mark.parametrize("name", PAGES)
def test_it_is_html_as_the_standard_has_it(reports, name):
    text = reports[name].read_text()
    page = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(text)  # raises for any error
    identities = [element.get("id") for element in page.iter() if element.get("id")]
    assert len(identities) == len(set(identities))
    for section in page.iter("section"):
        assert section.get("aria-labelledby") in identities
    for table in page.iter("table"):
        assert table.find("caption") is not None
        assert all(heading.get("scope") for heading in table.iter("th"))
    for picture in page.iter("{http://www.w3.org/2000/svg}svg"):
        assert picture.get("aria-hidden") or (picture.get("role") == "img" and picture.get("aria-label"))
    assert not list(page.iter("script"))
    links = [link.get("href") for link in page.iter("a")]
    assert all(link.removeprefix("#") in identities for link in links)
    assert re.findall(r'(?:src|xlink:href)="|url\(|@import', text) == []


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM:
        pytest.skip("no chromium here: make nightly installs it")
    browser = Browser()
    yield browser
    browser.close()


# Returns clipped content, and overlapping texts of a picture.
CUT = """[...document.querySelectorAll('#page *')].filter(element => {
    const box = element.getBoundingClientRect();
    return box.width > 1 && (box.right > innerWidth + 1 || box.left < -1) && !element.closest('.wide');
}).map(element => element.outerHTML.slice(0, 80))"""
ON_ONE_ANOTHER = """[...document.querySelectorAll('figure')].flatMap(figure => {
    const texts = [...figure.querySelectorAll('text, .scale span, .span span')];
    const boxes = texts.map(text => text.getBoundingClientRect());
    return boxes.flatMap((one, place) => boxes.slice(place + 1).filter(other =>
        one.left < other.right - 1 && other.left < one.right - 1 &&
        one.top < other.bottom - 3 && other.top < one.bottom - 3
    )).map(() => figure.textContent);
})"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_fits_any_width_without_other_requests(reports, browser, name, dark):
    browser.complaints.clear()
    for width in (360, 768, 1280, 2560):
        browser.look(width, dark=dark)
        browser.requests.clear()
        browser.open(reports[name].as_uri())
        assert browser.get("document.documentElement.scrollWidth") <= width
        assert browser.get(CUT) == []
        assert browser.get(ON_ONE_ANOTHER) == [], width
        ground = browser.get("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == dark
        assert [url for url, _ in browser.requests] == [reports[name].as_uri()]
        assert browser.get("document.title").startswith("Replay of ")
        if directory := os.environ.get("SCREENSHOTS"):
            browser.picture(pathlib.Path(directory) / f"report-{name}-{'dark' if dark else 'light'}-{width}.png")
    assert browser.complaints == []
