"""The Kubernetes files, checked against the schema and their promises. test_release.py runs the image."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools import BINARY, PROJECT, eventually, need, run

yaml = pytest.importorskip("yaml", reason="PyYAML and kubernetes-validate come with make setup")
KUBERNETES = PROJECT / "packaging/kubernetes"


FILES = ["sidecar.yaml", "chart"]
RULES = "domain: shop\nlimits:\n  - {name: per-user, key: [user], rate: 2000000/s, burst: 4000000}\n"


def rendered(rules: Path, *more: object) -> str:
    """Returns the objects of the chart with a file of rules."""
    need("helm")
    shown = ["helm", "template", "tidegate", KUBERNETES / "chart", "--namespace", "tidegate", *more]
    return run(*shown, "--set-file", f"rules.shop\\.yaml={rules}")


@pytest.fixture
def documents(tmp_path: Path, name: str) -> list[dict[str, Any]]:
    """The objects of a file, or of the rendered chart."""
    if name != "chart":
        return list(yaml.safe_load_all((KUBERNETES / name).read_text()))
    (tmp_path / "shop.yaml").write_text(RULES)
    return list(yaml.safe_load_all(rendered(tmp_path / "shop.yaml")))


def pod(found: list[dict[str, Any]]) -> dict[str, Any]:
    [workload] = [each for each in found if each["kind"] != "ConfigMap"]
    template: dict[str, Any] = workload["spec"]["template"]["spec"]
    return template


@pytest.mark.parametrize("name", FILES)
def test_kubernetes_schema_accepts_it(documents: list[dict[str, Any]]) -> None:
    schema = pytest.importorskip("kubernetes_validate")
    for document in documents:
        # Unknown fields are errors, too. 1.29 is the first with native sidecars by default.
        for version in ("1.29", schema.latest_version()):
            schema.validate(document, version, strict=True)
    pod(documents)["restartPolicies"] = "Always"
    [workload] = [each for each in documents if each["kind"] != "ConfigMap"]
    with pytest.raises(schema.ValidationError, match="restartPolicies"):
        schema.validate(workload, "1.29", strict=True)


@pytest.mark.parametrize("name", FILES)
def test_the_daemon_accepts_settings_and_rules(documents: list[dict[str, Any]], tmp_path: Path) -> None:
    spec, maps = pod(documents), {each["metadata"]["name"]: each for each in documents if each["kind"] == "ConfigMap"}
    [mounts] = [each["volumeMounts"] for each in spec.get("initContainers") or spec["containers"]]
    root = tmp_path / "root"
    for volume in (each for each in spec["volumes"] if "configMap" in each):
        data = maps[volume["configMap"]["name"]]["data"]
        paths = {item["path"]: data[item["key"]] for item in volume["configMap"].get("items", [])} or data
        [mount] = [each for each in mounts if each["name"] == volume["name"]]
        for path, text in paths.items():
            file = root / mount["mountPath"].lstrip("/") / ("" if mount.get("subPath") == path else path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    settings = root / "etc/tidegate/tidegate.yaml"
    output = run(BINARY, "check", settings)
    assert "1 domain, 1 rule; 0 errors, 0 warnings" in output, output
    assert "mode: shadow" in settings.read_text(), "its first day refuses no request"


def test_the_chart_mounts_secrets_and_starts_a_pod_for_new_settings(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(RULES)
    (tmp_path / "tidegate.yaml").write_text("mode: enforce\nrules: rules\n")
    first = rendered(tmp_path / "shop.yaml")
    more = ["--set-file", f"settings={tmp_path}/tidegate.yaml", "--set", "secret=redis"]
    second = rendered(tmp_path / "shop.yaml", *more)
    sums = [[line for line in text.splitlines() if "checksum/settings:" in line] for text in (first, second)]
    assert len(sums[0]) == len(sums[1]) == 1 and sums[0] != sums[1]
    schema = pytest.importorskip("kubernetes_validate")
    for document in yaml.safe_load_all(second):
        schema.validate(document, "1.29", strict=True)
    assert '{secretName: "redis", defaultMode: 0400}' in second and "secret" not in first
    empty = run("helm", "template", "tidegate", KUBERNETES / "chart")
    assert [each["data"] for each in yaml.safe_load_all(empty) if each["metadata"]["name"] == "tidegate-rules"] == [{}]


@pytest.mark.parametrize("name", FILES)
def test_it_may_do_little_and_shares_a_directory(documents: list[dict[str, Any]]) -> None:
    spec = pod(documents)
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


@pytest.mark.parametrize("name", ["sidecar.yaml"])
def test_the_sidecars_startup_probe_only_connects(documents: list[dict[str, Any]], tmp_path: Path) -> None:
    spec = pod(documents)
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
