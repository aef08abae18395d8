"""Compose files as one project, put together as Compose does: `make compose-test` asks the real one."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from duetime_core.node.settings import NodeSettings
from duetime_core.together import node_class
from duetime_webhooks.settings import WebhookSettings

PROJECT = Path(__file__).resolve().parents[2]
PLAIN = ("docker-compose.yml",)
SECURE = (*PLAIN, "deploy/compose/secure.yml")
REPLICATED = (*PLAIN, "deploy/compose/replicated.yml")

Service = dict[str, Any]


def services_of(files: tuple[str, ...]) -> dict[str, Service]:
    """Services by name. Maps are merged, mounts by their mount point; for other keys the later file wins."""
    found: dict[str, Service] = {}
    for file in files:
        for name, service in yaml.safe_load((PROJECT / file).read_text())["services"].items():
            found[name] = _merged(found.get(name, {}), service)
    return found


def volumes_of(files: tuple[str, ...]) -> set[str]:
    """Names of all that are declared."""
    return {name for file in files for name in yaml.safe_load((PROJECT / file).read_text())["volumes"]}


def mounts_of(service: Service) -> dict[str, str]:
    """Volume or path of the host by where it is mounted, such as `{"/var/lib/duetime": "store-0"}`."""
    return {mount.split(":")[1]: mount.split(":")[0] for mount in service.get("volumes", [])}


def settings_of(name: str, service: Service, **environment: str) -> NodeSettings:
    """A server's settings as its image has them, and compose with these variables; each has a default in the files."""

    def value(text: str) -> str:
        return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: environment.get(found[1]) or found[2], text)

    role = name.partition("-")[0]
    # The worker is no node of a process that runs several.
    kind: type[NodeSettings] = WebhookSettings if role == "webhooks" else node_class(role).settings_class
    prefix = kind.model_config["env_prefix"]
    image = dict(re.findall(rf"\b({prefix}\w+)=(\S+)", (PROJECT / "Dockerfile").read_text()))
    assert image[prefix + "HOST"] == "0.0.0.0"
    told = image | {key: value(text) for key, text in service["environment"].items()}
    with pytest.MonkeyPatch.context() as patch:
        for key in [key for key in os.environ if key.startswith("DUETIME_")]:
            patch.delenv(key)
        for key, text in told.items():
            patch.setenv(key, text)
        return kind.read([])


def _merged(former: Service, later: Service) -> Service:
    made = {**former, **later}
    for key in ("environment", "depends_on"):
        if key in former and key in later:
            made[key] = {**former[key], **later[key]}
    if "volumes" in former and "volumes" in later:
        by_target = {mount.split(":")[1]: mount for mount in (*former["volumes"], *later["volumes"])}
        made["volumes"] = list(by_target.values())
    return made
