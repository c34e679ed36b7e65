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
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tools import BINARY, PROJECT, eventually, need, run

TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or PROJECT / "target")
FILES = Path(os.environ.get("RELEASE_FILES") or TARGET / "release-files")
IMAGE_BYTES_MAX = 15_000_000
RELEASE = [sys.executable, PROJECT / "packaging/release"]


RULES = "domain: api\nlimits:\n  - {name: per-user, key: [user], rate: 1/min, burst: 1}\n"


@contextmanager
def serving(binary: Path, directory: Path) -> Iterator[dict[str, str]]:
    """Runs the daemon with one rule, of one request per user; yields the environment of its clients."""
    (directory / "rules").mkdir()
    (directory / "rules/api.yaml").write_text(RULES)
    here = os.environ | {"TIDEGATE_SOCKET": str(directory / "t.sock")}
    with (directory / "log").open("w") as log:
        daemon = subprocess.Popen([binary, "serve", "--rules", directory / "rules"], env=here, stderr=log)
    try:
        live = [binary, "healthcheck", "--live"]
        assert eventually(lambda: subprocess.run(live, env=here, capture_output=True).returncode == 0), "no daemon"
        yield here
    finally:
        daemon.terminate()
        assert daemon.wait(20) == 0, (directory / "log").read_text()


def hits(binary: Path, directory: Path) -> list[str]:
    """Returns the verdicts of two requests by this binary's own daemon."""
    with serving(binary, directory) as here:
        words = [binary, "hit", "api", "user=u1"]
        return [subprocess.run(words, env=here, capture_output=True, text=True).stdout.split()[0] for _ in range(2)]


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


def test_every_repository_is_that_of_cargo_toml() -> None:
    other = subprocess.run([*RELEASE, "versions", "--repository", "example.com/limits"], capture_output=True, text=True)
    assert other.returncode == 1 and "the repository is example.com/limits, but" in other.stderr
    found = dict(line.split(" has ") for line in other.stderr.splitlines()[1:])
    [repository] = re.findall(r'^repository = "https://(.*)"', (PROJECT / "Cargo.toml").read_text(), re.M)
    assert set(found.values()) == {repository}
    clients = {path.split("/")[1] for path in found if path.startswith("clients/")}
    assert clients == {"python", "ruby", "node", "go", "rust"} and "SECURITY.md" in found


def test_tags_of_the_go_client_are_its_versions(tmp_path: Path) -> None:
    """From a proxy of files, as the go command itself fills one."""
    need("go", "git")
    output = run(*RELEASE, "go", "--out", tmp_path / "out")
    [repository] = re.findall(r"push https://(\S+) clients/go/v", output)
    copy = tmp_path / "out/go"
    version = run("git", "describe", "--tags", "--match", "clients/go/v*", cwd=copy).strip().rsplit("/", 1)[1]
    here = os.environ | {
        "GOPRIVATE": repository, "GOMODCACHE": str(tmp_path / "modules"), "GOFLAGS": "-modcacherw -mod=mod",
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.file://{copy}.insteadOf",
        "GIT_CONFIG_VALUE_0": f"https://{repository}",
    }
    client = f"{repository}/clients/go"
    (tmp_path / "program").mkdir()
    (tmp_path / "program/main.go").write_text(f"""package main

import (
	"context"
	"fmt"

	"{client}"
)

func main() {{
	client, user := tidegate.New(), tidegate.Attributes{{{{"user", "u1"}}}}
	hit := func() bool {{ return client.Hit(context.Background(), "api", user).Err() == nil }}
	fmt.Println(tidegate.Version, hit(), hit())
}}
""")
    program = {"cwd": tmp_path / "program"}
    run("go", "mod", "init", "program", **program, env=here)
    for module in (client, f"{client}/grpc"):
        run("go", "mod", "download", f"{module}@{version}", **program, env=here)
    # Another cache, which has the proxy alone.
    proxy = {"GOPROXY": f"file://{tmp_path}/modules/cache/download", "GOPRIVATE": "", "GONOSUMDB": "*",
             "GIT_CONFIG_COUNT": "0", "GOMODCACHE": str(tmp_path / "fresh")}
    run("go", "get", f"{client}@{version}", **program, env=here | proxy)
    run("go", "build", "-o", "program", ".", **program, env=here | proxy)
    with serving(BINARY, tmp_path) as daemon:
        assert run("./program", **program, env=daemon).split() == [version[1:], "true", "false"]


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
    assert hits(top / "tidegate", tmp_path) == ["allow", "limit"]


@pytest.mark.nightly
def test_the_packages_have_the_same_daemon(tmp_path: Path) -> None:
    need("dpkg-deb", "rpm2archive")
    run("dpkg-deb", "--extract", only("tidegate_*.deb"), tmp_path / "deb")
    rpm = only("tidegate-*.rpm").read_bytes()
    packed = subprocess.run(["rpm2archive", "-"], input=rpm, stdout=subprocess.PIPE, check=True)
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(tmp_path / "rpm", filter="data")
    for kind in ("deb", "rpm"):
        binary = tmp_path / kind / "usr/bin/tidegate"
        assert run(binary, "--version") == run(BINARY, "--version")
        (tmp_path / f"{kind}.run").mkdir()
        assert hits(binary, tmp_path / f"{kind}.run") == ["allow", "limit"]
    assert (tmp_path / "deb/usr/bin/tidegate").read_bytes() == (tmp_path / "rpm/usr/bin/tidegate").read_bytes()


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
        assert "NOT LIMITED" in run(*inside, "/usr/bin/tidegate", "hit", "api", "user=u1", **own)
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
    path = only("tidegate-[0-9]*.crate")
    with tarfile.open(path) as archive:
        assert not [name for name in archive.getnames() if re.search(r"^[^/]+/(tests|clients|docs|benches)/", name)]
        archive.extractall(tmp_path, filter="data")
    words = ["--debug", "--locked", "--path", tmp_path / path.stem, "--root", tmp_path, "--target-dir", TARGET]
    run("cargo", "install", *words, cwd=tmp_path)
    assert run(tmp_path / "bin/tidegate", "--version") == run(BINARY, "--version")
    assert hits(tmp_path / "bin/tidegate", tmp_path) == ["allow", "limit"]


@pytest.mark.nightly
def test_the_wheel_is_installed_and_the_sdist_makes_the_same(tmp_path: Path) -> None:
    wheel, source = only("tidegate-*.whl"), only("tidegate-[0-9.]*[0-9].tar.gz")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    run(python, "-m", "pip", "install", "--no-index", wheel)
    program = """if True:
        import tidegate, tidegate.wsgi, tidegate.aio
        client = tidegate.Client()
        print(tidegate.__version__, tidegate.__file__, *[client.hit("api", {"user": "u1"}).allowed for _ in "12"])"""
    with serving(BINARY, tmp_path) as here:
        version, file, *allowed = run(python, "-I", "-c", program, env=here).split()
    assert allowed == ["True", "False"]
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
    program = """
        require "tidegate/rack"
        client = Tidegate::Client.new
        print [Tidegate::VERSION, *Array.new(2) { client.hit("api", { user: "u1" }).allowed? }].join(" ")"""
    with serving(BINARY, tmp_path) as daemon:
        version, *allowed = run("ruby", "-e", program, env=daemon | here).split()
    assert gem.name == f"tidegate-{version}.gem" and allowed == ["true", "false"]


@pytest.mark.nightly
def test_the_npm_package_is_installed(tmp_path: Path) -> None:
    need("npm")
    package = only("tidegate-*-npm.tgz")
    (tmp_path / "package.json").write_text('{"name": "empty", "version": "1.0.0"}')
    run("npm", "install", "--offline", "--no-audit", "--no-fund", package, cwd=tmp_path)
    script = """(async () => {
        const client = new (require("tidegate").Client)();
        const ask = async () => (await client.hit("api", { user: "u1" })).allowed;
        console.log(require("tidegate/package.json").version, await ask(), await ask());
        client.close();
    })()"""
    with serving(BINARY, tmp_path) as here:
        version, *allowed = run("node", "-e", script, cwd=tmp_path, env=here).split()
    assert package.name == f"tidegate-{version}-npm.tgz" and allowed == ["true", "false"]


@pytest.mark.nightly
def test_the_maven_repository_has_all_artifacts(tmp_path: Path) -> None:
    """Unpacked into the local repository, and built against without the network."""
    need("mvn", "javac")
    archive = only("tidegate-*-maven.tar.gz")
    # The plugins of Maven are those of this user.
    local = tmp_path / "local"
    home = Path.home() / ".m2/repository"
    for directory in ("", "io", "io/github"):
        (local / directory).mkdir()
        for each in (home / directory).glob("*"):
            if each.relative_to(home).as_posix() not in ("io", "io/github", "io/github/tidegate"):
                (local / directory / each.name).symlink_to(each)
    run("tar", "-xf", archive, "-C", local)
    [version] = os.listdir(local / "io/github/tidegate/tidegate")
    names = sorted(path.name for path in (local / "io/github/tidegate").rglob("*.jar"))
    artifacts = ("tidegate", "tidegate-grpc", "tidegate-servlet", "tidegate-spring-boot-starter")
    assert names == sorted(f"{each}-{version}{kind}.jar" for each in artifacts for kind in ("", "-sources"))
    (tmp_path / "src/main/java").mkdir(parents=True)
    (tmp_path / "src/main/java/Ask.java").write_text("""
        import io.github.tidegate.TidegateClient;
        import java.util.Map;
        class Ask {
            public static void main(String[] arguments) {
                var client = TidegateClient.create();
                for (int i = 0; i < 2; i++) System.out.println(client.hit("api", Map.of("user", "u1")).allowed());
            }
        }""")
    (tmp_path / "pom.xml").write_text(f"""<project>
        <modelVersion>4.0.0</modelVersion>
        <groupId>example</groupId><artifactId>program</artifactId><version>1</version>
        <properties><maven.compiler.release>17</maven.compiler.release>
            <project.build.sourceEncoding>UTF-8</project.build.sourceEncoding></properties>
        <dependencies><dependency>
            <groupId>io.github.tidegate</groupId><artifactId>tidegate</artifactId><version>{version}</version>
        </dependency></dependencies>
        <build><plugins><plugin>
            <artifactId>maven-compiler-plugin</artifactId><version>3.14.1</version>
        </plugin></plugins></build>
    </project>""")
    run("mvn", "--batch-mode", "--offline", f"-Dmaven.repo.local={local}", "compile", cwd=tmp_path)
    jar = local / f"io/github/tidegate/tidegate/{version}/tidegate-{version}.jar"
    with serving(BINARY, tmp_path) as daemon:
        allowed = run("java", "-cp", f"{tmp_path}/target/classes:{jar}", "Ask", env=daemon).split()
    assert archive.name == f"tidegate-{version}-maven.tar.gz" and allowed == ["true", "false"]


@pytest.mark.nightly
def test_the_php_package_is_installed(tmp_path: Path) -> None:
    need("php", "composer")
    if "zip" not in run("php", "-m").split():
        pytest.skip("there is no zip extension of PHP here")
    package = only("tidegate-*-php.zip")
    shutil.copy(package, tmp_path)
    (tmp_path / "composer.json").write_text(json.dumps({
        "repositories": [{"type": "artifact", "url": str(tmp_path)}, {"packagist.org": False}],
        "require": {"tidegate/tidegate": "*"},
    }))
    here = os.environ | {"COMPOSER_HOME": str(tmp_path / "home"), "COMPOSER_ALLOW_SUPERUSER": "1"}
    run("composer", "install", "--no-interaction", "--no-progress", cwd=tmp_path, env=here)
    program = """require "vendor/autoload.php";
        $client = new Tidegate\\Client();
        $ask = fn () => var_export($client->hit("api", ["user" => "u1"])->allowed, true);
        echo Composer\\InstalledVersions::getPrettyVersion("tidegate/tidegate"), " ", $ask(), " ", $ask();"""
    with serving(BINARY, tmp_path) as daemon:
        version, *allowed = run("php", "-r", program, cwd=tmp_path, env=daemon).split()
    assert package.name == f"tidegate-{version}-php.zip" and allowed == ["true", "false"]


@pytest.mark.nightly
def test_the_list_of_packages_is_that_of_cargo() -> None:
    text = only("tidegate-*.cdx.json").read_text()
    bom = json.loads(text)
    words = ["--package", "tidegate", "--edges", "normal,build", "--target", "x86_64-unknown-linux-gnu"]
    tree = run("cargo", "tree", "--quiet", "--locked", *words, "--prefix", "none", cwd=PROJECT)
    wanted = {found for found in re.findall(r"^(\S+) v(\S+)", tree, re.M) if found[0] != "tidegate"}
    assert {(each["name"], each["version"]) for each in bom["components"]} == wanted
    # Each is reached from the daemon.
    needs = {each["ref"]: each["dependsOn"] for each in bom["dependencies"]}
    reached, left = set(), [bom["metadata"]["component"]["bom-ref"]]
    while left:
        reference = left.pop()
        left += set(needs[reference]) - reached
        reached.add(reference)
    assert len(reached) == len(wanted) + 1
    assert str(PROJECT) not in text


@pytest.mark.nightly
def test_the_chart_is_rendered() -> None:
    need("helm")
    shown = run("helm", "template", "tidegate", only("tidegate-*-chart.tgz"))
    assert "kind: DaemonSet" in shown and re.search(r'image: ".*/tidegate:\d+\.\d+\.\d+"', shown)
