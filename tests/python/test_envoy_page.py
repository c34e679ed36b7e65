"""The configurations of docs/envoy.md for Istio and Envoy Gateway: by the schemas of both, and by Envoy itself."""

import copy
import os
import pathlib
import re
import shutil
import subprocess

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
MADE = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "proxies"
SCHEMAS = ("customresourcedefinitions.gen.yaml", "gateway.envoyproxy.io_envoypatchpolicies.yaml")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs/envoy.md").read_text(), re.M | re.S)
STATIC, ISTIO, GATEWAY = (yaml.safe_load(block) for block in BLOCKS)


def strict(schema):
    """Returns the schema of an object, by which unknown fields are errors, as of `kubectl --validate=strict`."""
    if not isinstance(schema, dict):
        return [strict(each) for each in schema] if isinstance(schema, list) else schema
    parts = {key: strict(value) for key, value in schema.items()}
    is_closed = isinstance(schema.get("properties"), dict) and "x-kubernetes-preserve-unknown-fields" not in schema
    return parts | ({"additionalProperties": False} if is_closed else {})


def validate(document):
    """Validates an object by the definition of its kind and version."""
    jsonschema = pytest.importorskip("jsonschema")
    if missing := [name for name in SCHEMAS if not (MADE / name).is_file()]:
        pytest.skip(f"missing: {missing} (scripts/setup proxies)")
    definitions = [each for name in SCHEMAS for each in yaml.safe_load_all((MADE / name).read_text()) if each]
    [spec] = [each["spec"] for each in definitions if each["spec"]["names"]["kind"] == document["kind"]]
    group, version = document["apiVersion"].split("/")
    assert group == spec["group"]
    [schema] = [each["schema"]["openAPIV3Schema"] for each in spec["versions"] if each["name"] == version]
    of_all = {name: {} for name in ("apiVersion", "kind", "metadata")}
    jsonschema.validate(document, strict({**schema, "properties": of_all | schema["properties"]}))


@pytest.mark.nightly
@pytest.mark.parametrize("document", [ISTIO, GATEWAY], ids=lambda document: document["kind"])
def test_schema_accepts_it(document):
    validate(document)
    wrong = copy.deepcopy(document)
    [patches] = [value for value in wrong["spec"].values() if isinstance(value, list)]
    patches[0]["applyToo"] = "CLUSTER"
    jsonschema = pytest.importorskip("jsonschema")
    with pytest.raises(jsonschema.ValidationError, match="applyToo"):
        validate(wrong)


def parts(document):
    """The filter, the rate limits of a virtual host, and the cluster of a document."""
    if document is ISTIO:
        patches = {each["applyTo"]: each["patch"]["value"] for each in document["spec"]["configPatches"]}
        return patches["HTTP_FILTER"], patches["VIRTUAL_HOST"]["rate_limits"], patches["CLUSTER"]
    patches = {each["type"].rpartition(".")[2]: each["operation"]["value"] for each in document["spec"]["jsonPatches"]}
    return patches["Listener"], patches["RouteConfiguration"], patches["Cluster"]


@pytest.mark.nightly
@pytest.mark.parametrize("document", [ISTIO, GATEWAY], ids=lambda document: document["kind"])
def test_envoy_accepts_its_parts(document, tmp_path):
    envoy = shutil.which("envoy", path=os.pathsep.join([str(MADE), os.environ["PATH"]]))
    if envoy is None:
        pytest.skip("missing: envoy (scripts/setup proxies)")

    def validated(cluster):
        configuration = copy.deepcopy(STATIC)
        [chain] = configuration["static_resources"]["listeners"][0]["filter_chains"]
        manager = chain["filters"][0]["typed_config"]
        manager["http_filters"][0] = of_filter
        manager["route_config"]["virtual_hosts"][0]["rate_limits"] = rate_limits
        configuration["static_resources"]["clusters"][1] = cluster
        (tmp_path / "envoy.yaml").write_text(yaml.safe_dump(configuration))
        command = [envoy, "--mode", "validate", "-c", str(tmp_path / "envoy.yaml")]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    of_filter, rate_limits, cluster = parts(document)
    done = validated(cluster)
    assert done.returncode == 0, done.stdout
    done = validated(cluster | {"load_assignments": {}})
    assert done.returncode != 0 and "load_assignments" in done.stdout, done.stdout
