"""Every client through the same scenarios, of which `scenarios.py` is the table."""

from __future__ import annotations

import re

import pytest

from adapter import DEFAULTS, Adapter, Run
from languages import LANGUAGES, ROOT
from scenarios import SCENARIOS

PAGE = re.sub(r"\s+", " ", (ROOT / "docs/protocol.md").read_text())


def _marked(language, scenario=None):
    """Returns a parameter, which runs every night only if its language or scenario does."""
    marks = [pytest.mark.xdist_group(f"conformance-{language}")]
    marks += [pytest.mark.nightly] if language.nightly or (scenario and scenario.nightly) else []
    values = [language] if scenario is None else [language, scenario]
    return pytest.param(*values, id="-".join([str(language), *([scenario.name] if scenario else [])]), marks=marks)


CASES = [_marked(language, scenario) for language in LANGUAGES for scenario in SCENARIOS if scenario.applies(language)]


@pytest.fixture(scope="session")
def adapters():
    """One process for each language, started by its first scenario and again after it failed."""
    started = {}
    yield started
    for adapter in started.values():
        adapter.end()


@pytest.mark.parametrize(("language", "scenario"), CASES)
def test_client(language, scenario, adapters, directory, request):
    print("guards:", *scenario.guards, sep="\n")  # shown if it fails
    if why := language.needs():
        pytest.skip(f"{language} is not tried: {why}")
    daemon = request.getfixturevalue("daemon") if scenario.rules is not None else None
    if daemon is not None:
        (daemon.rules / "api.yaml").write_text(scenario.rules)
        daemon.start()
    adapter = adapters.pop(language.name, None) or Adapter(language)
    run = None
    try:
        run = Run(adapter, scenario, daemon, directory)
        run.make(**scenario.options)
        for step in scenario.steps:
            step(run)
    except BaseException:
        adapter.end()
        raise
    finally:
        if run is not None and run.played:
            run.played.stop()
    adapters[language.name] = adapter


UNFIT = ("abc", "0", "-5", "1e3", "10001", "nan")  # of TIDEGATE_TIMEOUT_MS


@pytest.mark.parametrize("language", [_marked(one) for one in LANGUAGES])
def test_environment(language, directory):
    """A useless value leaves the default, and one line; TIDEGATE_DISABLE leaves one line at the first call."""
    if why := language.needs():
        pytest.skip(f"{language} is not tried: {why}")
    for value, name in [*((text, "TIDEGATE_TIMEOUT_MS") for text in (*UNFIT, "", "5000")), ("yes", "TIDEGATE_DISABLE")]:
        adapter = Adapter(language, **{name: value})
        try:
            adapter.send({"do": "make", "client": "", "socket": str(directory / "none")})
            assert adapter.receive() == {}
            adapter.send(*2 * [{"do": "hit", "client": "", **DEFAULTS}], {"do": "log", "client": ""})
            reasons = [adapter.receive()["reason"] for _ in range(2)]
            lines = [line.rstrip().removeprefix("tidegate: ") for line in adapter.receive()["lines"]]
        finally:
            adapter.end()
        if name == "TIDEGATE_DISABLE":
            assert reasons == 2 * ["disabled"]
            assert lines == ['TIDEGATE_DISABLE is "yes": nothing is limited']
            continue
        said = f'TIDEGATE_TIMEOUT_MS is "{value}", not above 0 and up to 10000: the timeout is 20 ms'
        assert reasons[0] == "unreachable" and [line for line in lines if "TIMEOUT" in line] == (
            [said] if value in UNFIT else []
        )


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_guards_a_sentence_of_the_protocol(scenario):
    for sentence in scenario.guards:
        assert re.sub(r"\s+", " ", sentence) in PAGE


def test_names_are_unique():
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
