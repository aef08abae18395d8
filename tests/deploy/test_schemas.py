"""The rendered manifests against Kubernetes' own schemas: no field that the API server would drop or refuse."""

import copy
import re
import warnings
from collections import Counter
from typing import Any

import pytest
import typer.main
import yaml
from duetime.cli.app import app

from deploy.site.documents import PROJECT
from tests.deploy.rendering import K8S, OVERLAYS, Manifest, render

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kubernetes_validate

# The oldest version in use, and the newest that there are schemas of. `sleep` in preStop is from 1.30 on.
VERSIONS = ("1.32", "1.34", kubernetes_validate.latest_version())
# Kinds of other projects: `make k8s-test` gives the API server definitions of them.
CUSTOM = {"Certificate", "Issuer", "PrometheusRule", "ScaledObject", "ServiceMonitor", "TriggerAuthentication"}
EXPECTED = {
    "Certificate": 9,
    "ConfigMap": 1,
    "CronJob": 1,
    "Deployment": 5,
    "HorizontalPodAutoscaler": 1,
    "Issuer": 2,
    "Job": 1,
    "Namespace": 1,
    "NetworkPolicy": 15,
    "PodDisruptionBudget": 6,
    "PrometheusRule": 1,
    "ScaledObject": 1,
    "Service": 9,
    "ServiceAccount": 1,
    "ServiceMonitor": 1,
    "StatefulSet": 1,
    "TriggerAuthentication": 1,
}


def validate(manifest: Manifest, version: str) -> None:
    kubernetes_validate.validate(copy.deepcopy(manifest), version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_manifest_fits_the_schema_of_kubernetes(overlay: str, version: str) -> None:
    for manifest in render(overlay):
        if manifest["kind"] not in CUSTOM:
            validate(manifest, version)


def test_alert_rules_are_those_of_prometheus() -> None:
    groups = [
        group
        for path in sorted((K8S.parent / "observability" / "alerts").glob("*.yml"))
        for group in yaml.safe_load(path.read_text())["groups"]
    ]
    (rules,) = (one for one in render("production") if one["kind"] == "PrometheusRule")
    assert rules["spec"]["groups"] == groups, "run python deploy/observability/rules.py"
    assert groups


@pytest.mark.parametrize("version", VERSIONS)
def test_worker_of_the_documents_fits_the_schema_and_its_command_is_valid(version: str) -> None:
    page = (PROJECT / "docs" / "kubernetes.md").read_text()
    blocks = (yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S))
    (worker,) = (one for one in blocks if one.get("kind") == "Deployment")
    validate(worker, version)
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    program, *arguments = container["command"]
    assert program == "duetime"
    command: Any = typer.main.get_command(app)
    context = command.make_context(program, arguments)
    work = command.get_command(context, arguments[0])
    options = work.make_context("work", arguments[1:], parent=context).params
    assert (options["app"], options["processes"], options["metrics_port"]) == ("shop:app", 2, 9890)


def test_misspelt_field_is_found() -> None:
    (store,) = (one for one in render("production") if one["kind"] == "StatefulSet")
    broken = copy.deepcopy(store)
    broken["spec"]["template"]["spec"]["terminationGracePeriod"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(broken, VERSIONS[0])


def test_production_has_the_expected_kinds() -> None:
    assert Counter(one["kind"] for one in render("production")) == EXPECTED


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_resource_is_outside_the_namespace(overlay: str) -> None:
    assert {one["metadata"].get("namespace") for one in render(overlay) if one["kind"] != "Namespace"} == {"duetime"}
