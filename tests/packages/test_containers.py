"""The container recipe, built and run; the Kubernetes files, checked against the schema and their promises."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tools import BINARY, PROJECT, Package, need, run

yaml = pytest.importorskip("yaml", reason="PyYAML and kubernetes-validate come with make setup")
KUBERNETES = PROJECT / "packaging/kubernetes"


def documents(name: str) -> dict[str, Any]:
    """Returns the objects of a file, by kind."""
    found = {each["kind"]: each for each in yaml.safe_load_all((KUBERNETES / name).read_text())}
    assert set(found) in ({"ConfigMap", "Deployment"}, {"ConfigMap", "DaemonSet"})
    return found


def pod(found: dict[str, Any]) -> dict[str, Any]:
    [workload] = [each for kind, each in found.items() if kind != "ConfigMap"]
    template: dict[str, Any] = workload["spec"]["template"]["spec"]
    return template


FILES = ["sidecar.yaml", "daemonset.yaml"]


@pytest.mark.parametrize("name", FILES)
def test_kubernetes_schema_accepts_it(name: str) -> None:
    schema = pytest.importorskip("kubernetes_validate")
    for document in documents(name).values():
        # Unknown fields are errors, too. 1.29 is the first with native sidecars by default.
        for version in ("1.29", schema.latest_version()):
            schema.validate(document, version, strict=True)
    wrong = documents(name)
    pod(wrong)["restartPolicies"] = "Always"
    [workload] = [each for kind, each in wrong.items() if kind != "ConfigMap"]
    with pytest.raises(schema.ValidationError, match="restartPolicies"):
        schema.validate(workload, "1.29", strict=True)


@pytest.mark.parametrize("name", FILES)
def test_the_daemon_accepts_settings_and_rules(name: str, tmp_path: Path) -> None:
    found = documents(name)
    [volume] = [each for each in pod(found)["volumes"] if "configMap" in each]
    assert volume["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    for item in volume["configMap"]["items"]:
        path = tmp_path / item["path"]
        path.parent.mkdir(exist_ok=True)
        path.write_text(found["ConfigMap"]["data"][item["key"]])
    output = run(BINARY, "check", tmp_path / "tidegate.yaml")
    assert "1 domain, 1 rule; 0 errors, 0 warnings" in output, output
    assert "mode: shadow" in (tmp_path / "tidegate.yaml").read_text(), "its first day refuses no request"


@pytest.mark.parametrize("name", FILES)
def test_it_may_do_little_and_shares_a_directory(name: str) -> None:
    spec = pod(documents(name))
    daemon = (spec.get("initContainers") or spec["containers"])[0]
    may = daemon["securityContext"]
    assert may["readOnlyRootFilesystem"] and may["capabilities"] == {"drop": ["ALL"]}
    assert may["allowPrivilegeEscalation"] is False and spec["securityContext"]["seccompProfile"]
    assert "cpu" not in daemon["resources"]["limits"], "who waits for CPU time makes the application wait"
    assert may["runAsGroup"] == 65532
    all_of_them = [*spec.get("initContainers", []), *spec["containers"]]
    sockets = [mount for each in all_of_them for mount in each["volumeMounts"] if mount["name"] == "socket"]
    # A socket mounted by itself would be stale after the first restart.
    assert all(mount["mountPath"] == "/run/tidegate" and "subPath" not in mount for mount in sockets), sockets
    [volume] = [each for each in spec["volumes"] if each["name"] == "socket"]
    assert "emptyDir" in volume or volume["hostPath"]["type"] == "DirectoryOrCreate"


def test_the_sidecars_startup_probe_only_connects(tmp_path: Path) -> None:
    spec = pod(documents("sidecar.yaml"))
    [daemon] = spec["initContainers"]
    assert daemon["restartPolicy"] == "Always"
    assert spec["securityContext"]["supplementalGroups"] == [daemon["securityContext"]["runAsGroup"]]
    [application] = spec["containers"]
    assert application["env"] == [{"name": "TIDEGATE_SOCKET", "value": "/run/tidegate/tidegate.sock"}]
    probe = daemon["startupProbe"]["exec"]["command"]
    assert probe[0] == "/usr/bin/tidegate"
    here = os.environ | {"TIDEGATE_SOCKET": str(tmp_path / "tidegate.sock")}

    def listens() -> bool:
        return subprocess.run([BINARY, *probe[1:]], env=here, capture_output=True).returncode == 0

    assert not listens(), "no process listens"
    # Unreadable rules keep no application from starting.
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/broken.yaml").write_text("domain: shop\nlimits: [{name: x, rat: 1/s}]\n")
    words = [BINARY, "serve", "--rules", tmp_path / "rules"]
    daemon_here = subprocess.Popen(words, env=here, stderr=subprocess.DEVNULL)
    try:
        assert eventually(listens)
        daemon_here.send_signal(signal.SIGSTOP)
        assert not listens(), "it listens, and hangs"
        daemon_here.send_signal(signal.SIGCONT)
        assert eventually(listens)
    finally:
        daemon_here.send_signal(signal.SIGCONT)
        daemon_here.kill()
        daemon_here.wait()


def eventually(condition: Any, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.nightly
@pytest.mark.xdist_group("package")
def test_the_recipe_makes_a_live_container(package: Package, tmp_path: Path) -> None:
    """On a base made here of the C library alone: pulls no image, and skips the stage that compiles."""
    need("buildah", "ldd")
    if os.geteuid() != 0:
        pytest.skip("only root can build a container without more ado")
    base, made = tmp_path / "base", tmp_path / "made/made"
    (made / "empty").mkdir(parents=True)
    shutil.copy(package.root / "usr/bin/tidegate", made)
    for library in sorted({word for word in run("ldd", made / "tidegate").split() if word.startswith("/")}):
        (base / library.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, base / library.lstrip("/"))
    (base / "etc").mkdir()
    (base / "etc/passwd").write_text("nonroot:x:65532:65532::/:/\n")
    (tmp_path / "Base").write_text("FROM scratch\nCOPY base/ /\n")
    (tmp_path / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    policy = ["--signature-policy", tmp_path / "policy.json"]
    tool = ["buildah", "--root", tmp_path / "store", "--runroot", tmp_path / "runroot", "--storage-driver", "vfs"]
    own = {"env": os.environ | {"BUILDAH_ISOLATION": "chroot"}}
    run(*tool, "bud", *policy, "-t", "base", "-f", tmp_path / "Base", tmp_path, **own)
    recipe = PROJECT / "packaging/container/Containerfile"
    built = run(*tool, "bud", "--format", "docker", *policy, "--build-context", f"build={tmp_path}/made", "--build-arg",
                "BASE=localhost/base", "-t", "tidegate", "-f", recipe, PROJECT, **own)
    assert "Successfully tagged" in built, built
    image = json.loads(run(*tool, "inspect", "--type", "image", "tidegate"))["Docker"]["config"]
    assert image["User"] == "65532:65532"
    container = run(*tool, "from", *policy, "--pull-never", "localhost/tidegate", **own).splitlines()[-1]
    inside = [*tool, "run", container, "--"]
    words = [str(word) for word in [*inside, *image["Entrypoint"], *image["Cmd"]]]
    log = (tmp_path / "log").open("w")
    daemon = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True, **own)  # type: ignore[call-overload]

    def well() -> bool:
        check = [*inside, *image["Healthcheck"]["Test"][1:]]
        return subprocess.run([str(word) for word in check], capture_output=True, **own).returncode == 0  # type: ignore[call-overload]

    try:
        assert eventually(well, 60), (tmp_path / "log").read_text()
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


