"""The files of `packaging/release`, installed and used as by a new user. RELEASE_FILES names their directory."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tools import BINARY, PROJECT, eventually, need, run

TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or PROJECT / "target")
FILES = Path(os.environ.get("RELEASE_FILES") or TARGET / "release-files")
IMAGE_BYTES_MAX = 15_000_000
RELEASE = [sys.executable, PROJECT / "packaging/release"]
CLIENT = "github.com/tidegate/tidegate/clients/go"


def only(pattern: str) -> Path:
    """Returns the file of the release, or skips the test."""
    found = list(FILES.glob(pattern))
    if not found:
        pytest.skip(f"no {FILES}/{pattern}: packaging/release makes it")
    assert len(found) == 1, found
    return found[0]


def test_every_version_is_that_of_cargo_toml() -> None:
    run(*RELEASE, "versions")
    other = subprocess.run([*RELEASE, "versions", "--version", "9.9.9"], capture_output=True, text=True)
    assert other.returncode == 1 and "the version is 9.9.9, but" in other.stderr
    places = [line.split(" has ")[0] for line in other.stderr.splitlines()[1:]]
    expected = ["python/src/tidegate/__init__.py", "go/grpc/go.mod", "go/tidegate.go", "node/package.json"]
    assert {f"clients/{path}" for path in [*expected, "php/Tidegate.php"]} <= set(places)
    assert "has no version" not in other.stderr


def test_tags_of_the_go_client_have_the_path_of_the_repository(tmp_path: Path) -> None:
    """From a proxy of files, as the go command itself fills one, by the name of another repository."""
    need("go", "git")
    repository = "github.com/example/limits"
    output = run(*RELEASE, "go", "--out", tmp_path / "out", "--repository", repository)
    assert f"push https://{repository} clients/go/v" in output
    copy = tmp_path / "out/go"
    assert CLIENT not in run("git", "grep", "-h", "tidegate/clients", "HEAD", "--", ".", cwd=copy)
    version = run("git", "describe", "--tags", "--match", "clients/go/v*", cwd=copy).strip().rsplit("/", 1)[1]
    here = os.environ | {
        "GOPRIVATE": repository, "GOMODCACHE": str(tmp_path / "modules"), "GOFLAGS": "-modcacherw -mod=mod",
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.file://{copy}.insteadOf",
        "GIT_CONFIG_VALUE_0": f"https://{repository}",
    }
    client = f"{repository}/clients/go"
    (tmp_path / "program").mkdir()
    (tmp_path / "program/main.go").write_text(
        f'package main\n\nimport "{client}"\n\nfunc main() {{ print(tidegate.Version, tidegate.New() != nil) }}\n')
    program = {"cwd": tmp_path / "program"}
    run("go", "mod", "init", "program", **program, env=here)
    for module in (client, f"{client}/grpc"):
        run("go", "mod", "download", f"{module}@{version}", **program, env=here)
    # Another cache, which has the proxy alone.
    proxy = {"GOPROXY": f"file://{tmp_path}/modules/cache/download", "GOPRIVATE": "", "GONOSUMDB": "*",
             "GIT_CONFIG_COUNT": "0", "GOMODCACHE": str(tmp_path / "fresh")}
    run("go", "get", f"{client}@{version}", **program, env=here | proxy)
    assert run("go", "run", ".", **program, env=here | proxy) == f"{version[1:]}true"


@pytest.mark.nightly
def test_sums_are_those_of_the_files() -> None:
    only("SHA256SUMS")
    run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=FILES)


@pytest.mark.nightly
def test_the_archive_has_a_static_binary_with_its_pages(tmp_path: Path) -> None:
    path = only("tidegate-*-linux.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    top = tmp_path / path.name.removesuffix(".tar.gz")
    assert "INTERP" not in run("readelf", "--program-headers", "--wide", top / "tidegate")
    assert run(top / "tidegate", "--version") == run(BINARY, "--version")
    for name in ("LICENSE", "README.md", "man/tidegate.1", "completions/_tidegate", "config/tidegate.yaml",
                 "config/rules/api.yaml", "systemd/tidegate.service", "systemd/sysusers.d/tidegate.conf"):
        assert (top / name).is_file(), name
    assert "0 errors" in run(top / "tidegate", "check", top / "config/rules")


@pytest.mark.nightly
def test_the_static_binary_resolves_host_names_without_files(tmp_path: Path) -> None:
    """As in the image: no C library and no nsswitch.conf, only the /etc/hosts of the container's runtime."""
    need("redis-server", "chroot", "unshare")
    if os.geteuid() != 0:
        pytest.skip("only root can change its root")
    path = only("tidegate-*-linux.tar.gz")
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    with tarfile.open(path) as archive:
        archive.extract(f"{path.name.removesuffix('.tar.gz')}/tidegate", tmp_path, filter="data")
    shutil.move(tmp_path / path.name.removesuffix(".tar.gz") / "tidegate", root / "tidegate")
    (root / "etc/hosts").write_text("127.0.0.1 budget.example.com\n")
    (root / "rules").mkdir()
    (root / "rules/api.yaml").write_text("domain: api\nlimits:\n  - {name: all, key: [], rate: 5/s, scope: fleet}\n")
    (root / "secret").write_bytes(os.urandom(32))
    redis = "{url: 'redis://budget.example.com:6379', fleet_secret_files: [/secret]}"
    (root / "tidegate.yaml").write_text(f"rules: rules\nsocket: {{path: /t.sock}}\nredis: {redis}\n")
    # A network of its own, where every port is free.
    script = f"""
        ip link set lo up; redis-server --port 6379 --save '' --dir {tmp_path} >{tmp_path}/redis.log & redis=$!
        chroot {root} /tidegate serve --config /tidegate.yaml 2>{tmp_path}/log & daemon=$!
        for i in $(seq 200); do
            chroot {root} /tidegate fleet --socket /t.sock >{tmp_path}/seen 2>&1
            grep -q 'Redis.*up' {tmp_path}/seen && break
            sleep 0.1
        done
        kill $daemon $redis; wait; cat {tmp_path}/seen {tmp_path}/log"""
    seen = run("unshare", "--net", "sh", "-c", script)
    assert re.search(r"Redis.*up", seen), seen


@pytest.mark.nightly
def test_the_image_is_small_and_lives(tmp_path: Path) -> None:
    need("buildah")
    path = only("tidegate-*-image.tar")
    if os.geteuid() != 0:
        pytest.skip("only root can run a container without more ado")
    assert path.stat().st_size <= IMAGE_BYTES_MAX
    (tmp_path / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    tool = ["buildah", "--root", tmp_path / "store", "--runroot", tmp_path / "runroot", "--storage-driver", "vfs"]
    own: dict[str, Any] = {"env": os.environ | {"BUILDAH_ISOLATION": "chroot"}}
    policy = ["--signature-policy", tmp_path / "policy.json"]
    container = run(*tool, "from", *policy, f"docker-archive:{path}", **own).splitlines()[-1]
    image = json.loads(run(*tool, "inspect", container))["Docker"]["config"]
    assert image["User"] == "65532:65532"
    inside = [*tool, "run", container, "--"]
    words = [str(word) for word in [*inside, *image["Entrypoint"], *image["Cmd"]]]
    log = (tmp_path / "log").open("w")
    daemon = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True, **own)

    def live() -> bool:
        check = [str(word) for word in [*inside, *image["Healthcheck"]["Test"][1:]]]
        return subprocess.run(check, capture_output=True, **own).returncode == 0

    try:
        assert eventually(live, 60), (tmp_path / "log").read_text()
        assert "mode shadow" in run(*inside, "/usr/bin/tidegate", "status", **own)
        assert "no rule" in run(*inside, "/usr/bin/tidegate", "hit", "api", "user=u1", **own)
    finally:
        # Signals only the daemon: buildah would end it by SIGKILL.
        of_its_session = ["pgrep", "-s", str(daemon.pid), "-x", "tidegate"]
        for pid in subprocess.run(of_its_session, capture_output=True).stdout.split():
            os.kill(int(pid), signal.SIGTERM)
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(daemon.pid, signal.SIGKILL)
        log.close()
        run(*tool, "rm", container, **own)
    assert "drained" in (tmp_path / "log").read_text()


@pytest.mark.nightly
def test_the_crate_builds_from_its_lock_file(tmp_path: Path) -> None:
    path = only("tidegate-*.crate")
    with tarfile.open(path) as archive:
        assert not [name for name in archive.getnames() if re.search(r"^[^/]+/(tests|clients|docs|benches)/", name)]
        archive.extractall(tmp_path, filter="data")
    words = ["--debug", "--locked", "--path", tmp_path / path.stem, "--root", tmp_path, "--target-dir", TARGET]
    run("cargo", "install", *words, cwd=tmp_path)
    assert run(tmp_path / "bin/tidegate", "--version") == run(BINARY, "--version")


@pytest.mark.nightly
def test_the_wheel_is_installed_and_the_sdist_makes_the_same(tmp_path: Path) -> None:
    wheel, source = only("tidegate-*.whl"), only("tidegate-[0-9.]*[0-9].tar.gz")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    run(python, "-m", "pip", "install", "--no-index", wheel)
    program = "import tidegate, tidegate.wsgi, tidegate.aio; print(tidegate.__version__, tidegate.__file__)"
    version, file = run(python, "-I", "-c", program).split()
    assert wheel.name.startswith(f"tidegate-{version}-") and file.startswith(str(tmp_path))
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / f"tidegate-{version}"
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again", cwd=unpacked)
    [again] = (tmp_path / "again").glob("*.whl")
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


@pytest.mark.nightly
def test_the_gem_is_installed(tmp_path: Path) -> None:
    need("gem")
    gem = only("tidegate-*.gem")
    here = os.environ | {"GEM_HOME": str(tmp_path), "GEM_PATH": str(tmp_path)}
    run("gem", "install", "--local", "--no-document", gem, env=here)
    assert run("ruby", "-e", "require 'tidegate/rack'; print Tidegate::VERSION", env=here) in gem.name


@pytest.mark.nightly
def test_the_npm_package_is_installed(tmp_path: Path) -> None:
    need("npm")
    package = only("tidegate-*-npm.tgz")
    (tmp_path / "package.json").write_text('{"name": "empty", "version": "1.0.0"}')
    run("npm", "install", "--offline", "--no-audit", "--no-fund", package, cwd=tmp_path)
    script = 'console.log(typeof require("tidegate").Client, require("tidegate/package.json").version)'
    kind, version = run("node", "-e", script, cwd=tmp_path).split()
    assert kind == "function" and package.name == f"tidegate-{version}-npm.tgz"


@pytest.mark.nightly
def test_the_chart_is_rendered() -> None:
    need("helm")
    shown = run("helm", "template", "tidegate", only("tidegate-*-chart.tgz"))
    assert "kind: DaemonSet" in shown and re.search(r'image: ".*/tidegate:\d+\.\d+\.\d+"', shown)
