"""The content of the package, and lintian, which reports nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from tools import BINARY, PROJECT, Package, need, run


def members(package: Package) -> dict[str, tarfile.TarInfo]:
    """Returns every entry of the archive with its path."""
    packed = subprocess.run(["dpkg-deb", "--fsys-tarfile", package.path], check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        return {member.name.removeprefix(".").rstrip("/"): member for member in archive}


EXPECTED = {
    "/usr/bin/tidegate": 0o755,
    "/etc/tidegate/tidegate.yaml": 0o644,
    "/lib/systemd/system/tidegate.service": 0o644,
    "/lib/systemd/system/tidegate.socket": 0o644,
    "/usr/lib/sysusers.d/tidegate.conf": 0o644,
    "/usr/lib/tmpfiles.d/tidegate.conf": 0o644,
    "/usr/share/man/man1/tidegate.1.gz": 0o644,
    "/usr/share/bash-completion/completions/tidegate": 0o644,
    "/usr/share/zsh/vendor-completions/_tidegate": 0o644,
    "/usr/share/fish/vendor_completions.d/tidegate.fish": 0o644,
    "/usr/share/doc/tidegate/copyright": 0o644,
    "/usr/share/doc/tidegate/changelog.gz": 0o644,
    "/usr/share/doc/tidegate/install.md": 0o644,
    "/usr/share/doc/tidegate/migrate/README.md": 0o644,
    "/usr/share/doc/tidegate/examples/rules/four-limiters.yaml": 0o644,
    "/usr/share/doc/tidegate/examples/rules.schema.json": 0o644,
    "/usr/share/doc/tidegate/examples/kubernetes/sidecar.yaml": 0o644,
    "/usr/share/tidegate/python/tidegate/__init__.py": 0o644,
    "/usr/share/tidegate/ruby/tidegate.rb": 0o644,
}


@pytest.mark.xdist_group("package")
def test_files_are_where_they_belong_and_roots(package: Package) -> None:
    found = members(package)
    for path, mode in EXPECTED.items():
        assert path in found, path
        assert found[path].mode == mode, path
    for path, member in found.items():
        assert (member.uid, member.gid) == (0, 0), path
        assert member.isdir() or member.isfile(), f"{path} is neither a file nor a directory"
        assert not member.mode & 0o6022, f"{path} may be written to by others, or changes who runs it"
    assert [path for path in found if path.startswith("/etc/tidegate/")] == ["/etc/tidegate/tidegate.yaml"], "no rule"


@pytest.mark.xdist_group("package")
def test_every_page_is_there_and_the_units_name_one_of_them(package: Package) -> None:
    pages = {page.name for page in (PROJECT / "docs").glob("*.md")}
    assert pages <= {page.name for page in (package.root / "usr/share/doc/tidegate").glob("*.md")}
    for unit in (package.root / "lib/systemd/system").iterdir():
        [named] = re.findall(r"^Documentation=file://(.*)$", unit.read_text(), re.M)
        assert (package.root / named.lstrip("/")).is_file(), named
        for path in re.findall(r"^ExecStart=(\S+)", unit.read_text(), re.M):
            assert (package.root / path.lstrip("/")).is_file(), path


@pytest.mark.xdist_group("package")
def test_settings_refuse_no_request_and_are_a_conffile(package: Package) -> None:
    assert (package.control / "conffiles").read_text() == "/etc/tidegate/tidegate.yaml\n"
    settings = package.root / "etc/tidegate/tidegate.yaml"
    text = [line for line in settings.read_text().splitlines() if line and not line.startswith("#")]
    assert text == ["mode: shadow", "admin: {socket: /run/tidegate/admin.sock}"], "everything else is a default"
    # The rules have an absolute path, which is replaced by one below this root.
    (package.root / "etc/tidegate/rules").mkdir(exist_ok=True)
    for_here = package.root.parent / "here.yaml"
    for_here.write_text(settings.read_text() + f"rules: {package.root}/etc/tidegate/rules\n")
    binary = package.root / "usr/bin/tidegate"
    assert "0 errors, 1 warning" in run(binary, "check", for_here)
    assert " 0 errors" in run(binary, "check", package.root / "usr/share/doc/tidegate/examples/rules")


@pytest.mark.xdist_group("package")
def test_control_file_is_complete(package: Package) -> None:
    text = (package.control / "control").read_text()
    fields = dict(line.split(": ", 1) for line in text.splitlines() if not line.startswith(" "))
    version = re.search(r'^version = "(.*)"', (PROJECT / "Cargo.toml").read_text(), re.M)
    assert version and fields["Version"] == version[1]
    assert run(BINARY, "--version").split() == ["tidegate", version[1]]
    assert (PROJECT / "packaging/deb/changelog").read_text().startswith(f"tidegate ({version[1]}) ")
    assert "systemd (>= 247)" in fields["Depends"], fields["Depends"]
    assert re.search(r"libc6 \(>= ", fields["Depends"]), fields["Depends"]
    for line in text.splitlines():
        assert len(line) <= 120, line


@pytest.mark.xdist_group("package")
def test_man_pages_and_completions_are_read_by_their_readers(package: Package) -> None:
    pages = {path.name for path in (package.root / "usr/share/man/man1").iterdir()}
    commands = re.findall(r"^  ([a-z]+) ", run(BINARY, "--help").split("Run:")[1].split("Options:")[0], re.M)
    assert "serve" in commands
    assert {f"tidegate-{command}.1.gz" for command in commands} <= pages, pages
    run("bash", "-n", package.root / "usr/share/bash-completion/completions/tidegate")
    zsh = (package.root / "usr/share/zsh/vendor-completions/_tidegate").read_text()
    assert zsh.startswith("#compdef tidegate\n")


@pytest.mark.xdist_group("package")
def test_the_packaged_clients_can_be_used(package: Package) -> None:
    share = package.root / "usr/share/tidegate"
    imported = f"import sys; sys.path.insert(0, '{share}/python')\nimport tidegate.wsgi; print(tidegate.__file__)"
    assert run(sys.executable, "-I", "-B", "-c", imported).startswith(str(share))
    need("ruby")
    run("ruby", "-I", share / "ruby", "-e", "require 'tidegate'; require 'tidegate/rack'")


@pytest.mark.xdist_group("package")
def test_lintian_reports_nothing(package: Package) -> None:
    need("lintian")
    text = run("lintian", "--fail-on", "error,warning,info", "--allow-root", *SUPPRESSED, package.path)
    assert not [line for line in text.splitlines() if line[:2] in ("E:", "W:", "I:")], text


@pytest.mark.nightly
@pytest.mark.xdist_group("package")
def test_cargo_deb_makes_the_same(package: Package, tmp_path: Path) -> None:
    need("cargo-deb")
    # It needs the binary at the path of a release build.
    target = tmp_path / "target"
    (target / "release").mkdir(parents=True)
    shutil.copy(BINARY, target / "release/tidegate")
    here = os.environ | {"CARGO_TARGET_DIR": str(target), "SOURCE_DATE_EPOCH": "1795348800"}
    run(sys.executable, PROJECT / "packaging/build", "pages", "--binary", BINARY, env=here)
    run("cargo", "deb", "--no-build", "--locked", "--fast", "--output", tmp_path / "other.deb", cwd=PROJECT, env=here)
    other = Package(tmp_path / "other.deb", tmp_path, tmp_path)
    text = {path: member.mode for path, member in members(other).items() if member.isfile()}
    ours = {path: member.mode for path, member in members(package).items() if member.isfile()}
    assert text == ours
    for field in ("Package", "Version", "Architecture", "Maintainer", "Section", "Priority", "Depends"):
        fields = [run("dpkg-deb", "-f", path, field).strip().split(", ") for path in (other.path, package.path)]
        # It omits packages that every Debian has.
        theirs, ours_here = [{word for word in words if not word.startswith("libgcc-s1 ")} for words in fields]
        assert theirs == ours_here, field
    run("dpkg-deb", "-e", other.path, tmp_path / "control")
    for name in ("conffiles", "postinst", "prerm", "postrm"):
        assert (tmp_path / "control" / name).read_text().strip() == (package.control / name).read_text().strip(), name


# Each tag is information, not a warning, and has a reason.
SUPPRESSED = [
    "--suppress-tags",
    # Rust does not use the C compiler's hardening of calls to the C library; random bytes of a binary look
    # like a word; and the unit is the only way to start it.
    "hardening-no-fortify-functions,spelling-error-in-binary,package-supports-alternative-init-but-no-init.d-script",
]


@pytest.mark.xdist_group("package")
def test_scripts_are_plain_and_stop_at_the_first_fault(package: Package) -> None:
    for name in ("postinst", "prerm", "postrm"):
        script: Path = package.control / name
        assert script.read_text().startswith("#!/bin/sh\nset -e\n"), name
        run("sh", "-n", script)
        assert "restart tidegate.socket" not in script.read_text(), "the socket stays"
