"""The package in a separate machine: installed, upgraded, removed; and the commands of docs/install.md."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import BINARY, PROJECT, Package, need, run

HERE = Path(__file__).resolve().parent


def machine(packages: Path) -> dict[str, str]:
    """Runs `packages/checks.sh` in a machine, and returns its findings."""
    output = run_checks(packages)
    return dict(re.findall(r"^([a-z_]+)=(.*)$", output, re.M))


def run_checks(packages: Path) -> str:
    """Returns the findings of such a machine."""
    words = ["bash", str(PROJECT / "tests/daemon/systemd/outside.sh"), "/bin/true", str(PROJECT), str(packages)]
    ended = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400)
    if ended.returncode == 77:
        pytest.skip(ended.stdout.strip().splitlines()[-1])
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def next_version(package: Package, path: Path) -> None:
    """The package as a later version, with another settings file."""
    tree = path.with_suffix("")
    run("dpkg-deb", "-R", package.path, tree)
    control = tree / "DEBIAN/control"
    control.write_text(re.sub(r"^Version: .*", "Version: 99.0", control.read_text(), flags=re.M))
    with (tree / "etc/tidegate/tidegate.yaml").open("a") as settings:
        settings.write("# A line that the last version did not have.\n")
    run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", tree, path)
    shutil.rmtree(tree)


@pytest.mark.nightly
@pytest.mark.xdist_group("package")
def test_it_is_installed_upgraded_and_removed(package: Package, tmp_path: Path) -> None:
    shutil.copy(package.path, tmp_path / "first.deb")
    next_version(package, tmp_path / "next.deb")
    shutil.copy(HERE / "checks.sh", tmp_path)
    facts = machine(tmp_path)
    version = package.path.name.split("_")[1]
    expected = {name: text.replace("FIRST", version) for name, text in EXPECTED.items()}
    wrong = {name: facts.get(name) for name, text in expected.items() if facts.get(name) != text}
    assert not wrong
    assert int(facts["asked"]) > 0


EXPECTED = {
    "installs": "0",
    "installed": "installed,FIRST",
    "states": "active,active",
    "enabled": "enabled,enabled",
    "socket": "tidegate:tidegate:660",
    "mode": "shadow",
    "rules": "root:root:755,0",
    "runs_as": "tidegate",
    "state_directory": "tidegate:700",
    "check": "0",
    "verify": "0",
    "man": "1",
    "shadow": "allow",
    # An upgrade answers every request and loses no state.
    "upgrades": "0",
    "upgraded": "installed,99.0",
    "unanswered": "0",
    "same_socket": "yes",
    "restarted": "yes",
    "kept_settings": "1",
    "offered_settings": "yes",
    "kept_counts": "limit",
    # Forbidden capabilities.
    "upgrades_all_the_same": "0",
    "left_running": "1",
    "upgrades_stopped": "0",
    "stays_stopped": "inactive,inactive",
    "note_gone": "no",
    "upgrades_disabled": "0",
    "stays_disabled": "disabled,disabled,inactive,inactive",
    # Removed, and installed again.
    "removes": "0",
    "removed": "config-files,FIRST",
    "stopped": "inactive,inactive",
    "program_gone": "no",
    "kept": "yes,yes,yes",
    "installs_again": "0",
    "states_again": "active,active",
    "kept_counts_again": "limit",
    "purges": "0",
    "purged": "",
    "purged_settings": "no",
    "purged_state": "no,no",
    "rules_of_people": "yes",
    "user_stays": "tidegate",
    "links_left": "0",
    "installs_last": "0",
    "purges_last": "0",
    "left": "0",
}

@pytest.mark.nightly
def test_the_rpm_is_installed_upgraded_and_removed(tmp_path: Path) -> None:
    need("rpm", "rpmbuild", "strip")
    for version, name in [([], "first.rpm"), (["--version", "99.0"], "next.rpm")]:
        words = ["rpm", "--fast", "--binary", BINARY, "--out", tmp_path, *version]
        path = run(sys.executable, PROJECT / "packaging/build", *words).strip().splitlines()[-1]
        shutil.move(path, tmp_path / name)
    files = "[%{FILENAMES} %{FILEMODES:octal} %{FILEUSERNAME}\n]"
    listed = run("rpm", "-qp", "--queryformat", files, tmp_path / "first.rpm")
    for path, mode in {"/usr/bin/tidegate": "100755", "/usr/lib/systemd/system/tidegate.socket": "100644",
                       "/etc/tidegate/rules": "40755", "/usr/share/man/man1/tidegate-serve.1.gz": "100644"}.items():
        assert f"{path} {mode} root\n" in listed, listed
    assert run("rpm", "-qp", "--configfiles", tmp_path / "first.rpm").split() == ["/etc/tidegate/tidegate.yaml"]
    shutil.copy(HERE / "checks_rpm.sh", tmp_path / "checks.sh")
    facts = machine(tmp_path)
    assert facts == {
        "installs": "0",
        # By convention: enabled, and started by hand.
        "enabled": "enabled,enabled",
        "states": "inactive,inactive",
        "rules": "root:root:755",
        "started": "active,active",
        "user": "tidegate",
        "upgraded": "0",
        "same_socket": "yes",
        "restarted": "yes",
        "after": "active,active",
        "kept_settings": "1",
        "removes": "0",
        "stopped": "inactive,inactive",
        "left": "no,yes",
    }


# Steps that need a network or a compiler are done before: neither is available here.
NOT_TYPED = ("cargo build", "apt-get update")


def blocks(page: str) -> list[tuple[int, str, str]]:
    """Returns the blocks of the page: the line, the kind and the text of each."""
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", page, re.M | re.S)
    return [(page.count("\n", 0, match.start()) + 1, match[1], match[2]) for match in found]


@pytest.mark.nightly
@pytest.mark.xdist_group("package")
def test_the_page_for_newcomers_works(package: Package, tmp_path: Path) -> None:
    found = blocks((PROJECT / "docs/install.md").read_text())
    typed, expected = [], []
    for line, kind, text in found:
        if kind == "sh" and not any(word in text for word in NOT_TYPED):
            typed.append(f"echo '##### {line}'\n{text}")
            expected.append((line, ""))
        elif kind == "text":
            expected[-1] = (expected[-1][0], text)
    assert len(typed) >= 7, "the page is typed"
    shutil.copy(package.path, tmp_path)
    prelude = "export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root; mkdir -p /opt; cd /packages; set -e\n"
    (tmp_path / "page.sh").write_text(prelude + "\n".join(typed) + "echo '##### end'\n")
    (tmp_path / "checks.sh").write_text("bash /packages/page.sh 2>&1 </dev/null; echo ended=$?\n")
    output = run_checks(tmp_path)
    assert "##### end\nended=0" in output, output
    outputs = dict(re.findall(r"^##### (\d+)\n(.*?)(?=^##### )", output, re.M | re.S))
    for line, text in expected:
        for wanted in filter(None, text.splitlines()):
            pattern = "^" + ".*".join(re.escape(part) for part in wanted.split("…")) + "[ \r]*$"
            came = outputs[str(line)]
            assert re.search(pattern, came, re.M), f"docs/install.md:{line}: no line `{wanted}` in\n{came}"
