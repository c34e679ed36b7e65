"""Every client through the same scenarios, of which `scenarios.py` is the table."""

from __future__ import annotations

import re

import pytest

from adapter import Adapter, Run
from languages import LANGUAGES, ROOT
from scenarios import SCENARIOS

PAGE = re.sub(r"\s+", " ", (ROOT / "docs/protocol.md").read_text())
CASES = [
    pytest.param(
        language,
        scenario,
        id=f"{language}-{scenario.name}",
        marks=[
            pytest.mark.xdist_group(f"conformance-{language}"),
            *([pytest.mark.nightly] if language.nightly or scenario.nightly else []),
        ],
    )
    for language in LANGUAGES
    for scenario in SCENARIOS
    if scenario.applies(language)
]


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


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_guards_a_sentence_of_the_protocol(scenario):
    for sentence in scenario.guards:
        assert re.sub(r"\s+", " ", sentence) in PAGE


def test_names_are_unique():
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
