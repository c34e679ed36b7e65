"""The daemon's page in a browser: its text by the rules of the HTML standard always, and in Chromium if installed
(`make nightly` installs it)."""

import contextlib
import itertools
import os
import pathlib
import re
import select
import subprocess
import threading
import urllib.request

import html5lib
import pytest

from browser import CHROMIUM, Browser

RULES = """\
domain: api
priorities: [high, low]
limits:
  - {name: per-user, key: [user], rate: 1/h, burst: 5}
  - {name: "a <b> & c", key: [user, plan], rate: 1/h, burst: 5, mode: shadow}
shed:
  - {pool: web, workers: {}, brake: {}}
"""
PATIENT = 30
NEEDED = "no chromium here: make nightly installs it"


@pytest.fixture
def served(daemon, make_client):
    """A daemon with rules and some traffic."""
    (daemon.rules / "api.yaml").write_text(RULES)
    daemon.start()
    stopped = threading.Event()

    def ask():
        client = make_client(socket=daemon.socket, pool="web", slots=4)
        while not stopped.wait(0.02):
            client.hit("api", {"user": "u1", "plan": "p"})

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    yield daemon
    stopped.set()
    thread.join(PATIENT)


@pytest.fixture
def address(served):
    with dashboard(served) as address:
        yield address


@contextlib.contextmanager
def dashboard(daemon):
    admin = daemon.socket.removesuffix(".sock") + ".admin.sock"
    process = subprocess.Popen([str(daemon.binary), "dashboard", "--admin", admin], stdout=subprocess.PIPE, text=True)
    try:
        assert select.select([process.stdout], [], [], PATIENT)[0], "it says where it is"
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        assert process.wait(PATIENT) == 0
        process.stdout.close()


def read(address):
    with urllib.request.urlopen(address, timeout=PATIENT) as answer:
        return answer.read().decode()


def test_it_is_html_as_the_standard_has_it(address):
    text = read(address)
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)  # raises for any error
    page = parser.parse(text, scripting=False)
    identities = [element.get("id") for element in page.iter() if element.get("id")]
    assert len(identities) == len(set(identities))
    tables = list(page.iter("table"))
    assert tables
    for table in tables:
        assert table.find("caption") is not None
        assert all(heading.get("scope") for heading in table.iter("th")), "each heading says of what"
    pictures = list(page.iter("{http://www.w3.org/2000/svg}svg"))
    assert len(pictures) >= 3
    assert all(picture.get("role") == "img" and picture.get("aria-label") for picture in pictures)
    for section in page.iter("section"):
        assert section.get("aria-labelledby") in identities
    tags = [element.tag for element in page.iter() if isinstance(element.tag, str)]
    levels = [int(tag[1]) for tag in tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and all(after <= before + 1 for before, after in itertools.pairwise(levels))
    fetched = re.findall(r'(?:src|href|action|xlink:href)="([^"]*)"|url\(([^)]*)\)|@import', text)
    assert all(one.startswith(("./", "data:")) for one, _ in fetched), fetched
    names = {"".join(heading.itertext()) for heading in page.iter("th") if heading.get("scope") == "row"}
    assert any("a <b> & c" in name for name in names)


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_texts_have_contrast_in_both_colour_schemes(address):
    """WCAG 2.1, AA: 4.5 for text, 3 for lines."""
    style = read(address).split("<style", 1)[1].split("</style>", 1)[0]
    by_day, by_night = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", part)) for part in style.split("@media", 2)[:2])
    assert by_day.keys() == by_night.keys() and len(by_day) > 10
    for colours in (by_day, by_night):
        for text in ("text", "quiet", "good", "note", "bad", "passed", "refused", "would", "shed"):
            for ground in ("ground", "panel"):
                assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
        for sign in ("good", "note", "bad"):
            assert contrast(colours[sign], colours[f"{sign}-ground"]) >= 4.5, sign
            assert contrast(colours["quiet"], colours[f"{sign}-ground"]) >= 4.5, sign


@pytest.fixture
def browser():
    if not CHROMIUM:
        pytest.skip(NEEDED)
    browser = Browser()
    yield browser
    browser.close()


def pictures(name):
    directory = os.environ.get("SCREENSHOTS")
    return pathlib.Path(directory) / name if directory else None


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_narrow_and_wide(address, browser, dark):
    for width in (360, 768, 1280, 2560):
        browser.look(width, dark=dark)
        browser.open(address)
        assert browser.get("document.documentElement.scrollWidth") <= width
        # Nothing is clipped: wide content scrolls within its own frame.
        cut = """[...document.querySelectorAll('#page *')].filter(element => {
            const box = element.getBoundingClientRect();
            return box.width > 1 && box.right > innerWidth + 1 && !element.closest('.wide');
        }).map(element => element.outerHTML.slice(0, 80))"""
        assert browser.get(cut) == []
        ground = browser.get("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == dark
        assert browser.get("document.querySelector('.health').getBoundingClientRect().top") < 120, "it comes first"
        if path := pictures(f"{'dark' if dark else 'light'}-{width}.png"):
            browser.picture(path)
    assert browser.complaints == []


def test_updates_keep_the_scroll_position(address, browser):
    browser.look(800, height=400)
    browser.open(address)
    browser.get("window.unchanged = true; document.querySelector('summary').click(); scrollTo(0, 300)")
    browser.get("document.querySelector('summary').focus({preventScroll: true})")
    figures = "document.querySelector('.figures').textContent"
    seen = browser.get(figures)
    browser.until("another look", lambda: browser.get(figures) != seen)
    assert browser.get("window.unchanged && document.activeElement.tagName") == "SUMMARY"
    assert browser.get("document.querySelector('details').open")
    assert abs(browser.get("scrollY") - 300) < 5
    assert browser.get("document.querySelector('#silence').hidden")
    assert browser.complaints == []


def test_shows_a_lost_daemon_and_its_return(served, address, browser):
    browser.open(address)
    served.stop(kill=True)
    silence = "document.querySelector('#silence')"
    browser.until("it says so", lambda: not browser.get(f"{silence}.hidden"))
    assert "start the daemon" in browser.get(f"{silence}.textContent") and "✖" in browser.get("document.title")
    assert browser.get("document.querySelector('.figures') !== null"), "what was known stays"
    served.start()
    browser.until("it is back", lambda: browser.get(f"{silence}.hidden"))
    assert "no answer" not in browser.get("document.title")


def test_a_hidden_page_sends_no_request(address, browser):
    browser.open(address)
    hide = "Object.defineProperty(document, 'hidden', {get: () => HIDDEN, configurable: true});"
    hide += "document.dispatchEvent(new Event('visibilitychange'))"
    browser.get(hide.replace("HIDDEN", "true"))
    browser.listen(1)  # requests in flight
    asked = len(browser.requests)
    browser.listen(5)
    assert len(browser.requests) == asked
    browser.get(hide.replace("HIDDEN", "false"))
    browser.until("it looks again", lambda: len(browser.requests) > asked)


def test_reloads_without_a_script(address, browser):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(address)
    loads = browser.loads
    browser.until("it has loaded again", lambda: browser.loads > loads)
    assert {status for url, status in browser.requests if url == address} == {200}
