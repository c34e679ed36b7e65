"""Every rule of docs/cookbook.md passes `tidegate check` without a warning, and its lines pass `tidegate test`."""

import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIDEGATE = os.environ.get("TIDEGATE_BIN", ROOT / "target/debug/tidegate")
RECIPE = re.compile(
    r"^## (?P<name>\d+\. .*?)\n.*?^```yaml\n(?P<rules>.*?)^```$.*?^```text\n(?P<lines>.*?)^```$", re.M | re.S
)


def recipes():
    page = (ROOT / "docs/cookbook.md").read_text()
    found = {match["name"]: (match["rules"], match["lines"]) for match in RECIPE.finditer(page)}
    assert list(found) == re.findall(r"^## (.*)$", page, re.M), "a recipe lacks its rules or its lines"
    return found


RECIPES = recipes()


def run(*arguments):
    return subprocess.run([TIDEGATE, *arguments], capture_output=True, text=True, timeout=60)


def judge(directory, rules, lines):
    (directory / "rules").mkdir()
    (directory / "rules/rules.yaml").write_text(rules)
    indented = "".join(f"      {line}\n" for line in lines.splitlines())
    (directory / "cases.yaml").write_text(f"rules: rules\ntests:\n  - name: recipe\n    requests: |\n{indented}")
    return run("check", directory / "rules"), run("test", directory / "cases.yaml")


def test_the_cookbook_has_twenty_rules():
    assert len(RECIPES) == 20


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_holds(tmp_path, name):
    checked, tested = judge(tmp_path, *RECIPES[name])
    assert checked.returncode == 0 and checked.stdout.rstrip().endswith("0 errors, 0 warnings"), (
        checked.stdout + checked.stderr
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_lines_need_their_rules(tmp_path, name):
    """Without its rules a recipe's lines do not pass, so they show an effect of the rules."""
    unlimited = "domain: none\nlimits:\n  - {name: none, key: [nobody], rate: 1/s}\n"
    _, tested = judge(tmp_path, unlimited, RECIPES[name][1])
    assert tested.returncode == 1, tested.stdout
