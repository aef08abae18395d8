"""Promises of docker-compose.yml and deploy/compose/replicated.yml together: one shard with three copies."""

import pytest
import yaml
from duetime_core.access.exposure import refuse_exposed
from duetime_core.node.settings import StoreClientSettings, parse_stores
from duetime_store.settings import StoreSettings

from tests.deploy.composing import PLAIN, PROJECT, REPLICATED, mounts_of, services_of, settings_of, volumes_of

SERVICES = services_of(REPLICATED)
COPIES = ("store-0", "store-1", "store-2")
CALLERS = ("scheduler", "retry", "gateway")
OWN = {"environment", "volumes"}


def settings_of_copy(name: str) -> StoreSettings:
    settings = settings_of(name, SERVICES[name])
    assert isinstance(settings, StoreSettings)
    return settings


def test_copies_are_one_group_with_a_number_and_a_volume_each() -> None:
    found = [settings_of_copy(name) for name in COPIES]
    assert [one.copy_number for one in found] == [1, 2, 3]
    assert len({(one.shard, one.copies, one.copies_group, one.advertise_host, one.port) for one in found}) == 1
    hosts = {number: address.partition(":")[0] for number, address in found[0].members.items()}
    assert hosts == dict(enumerate(COPIES, 1))
    assert [mounts_of(SERVICES[name])["/var/lib/duetime"] for name in COPIES] == list(COPIES)
    for name, one in zip(COPIES, found, strict=True):
        for listener in (*one.listeners, *one.metrics_listener):
            refuse_exposed(listener, one.insecure)
        assert SERVICES[name]["image"] == services_of(PLAIN)["store-0"]["image"]
    # The image has Raft's core.
    built = [SERVICES[name]["build"]["args"] for name in COPIES if "build" in SERVICES[name]]
    assert built == [{"NATIVE_IMAGE": "${NATIVE_IMAGE:-duetime/native}"}]


def test_third_copy_may_do_no_more_than_the_stores_of_the_plain_file() -> None:
    plain, third = services_of(PLAIN)["store-1"], SERVICES["store-2"]
    assert {key: third[key] for key in third.keys() - OWN} == {key: plain[key] for key in plain.keys() - OWN}
    assert plain["environment"].keys() <= third["environment"].keys()
    differs = {key for key, value in plain["environment"].items() if third["environment"][key] != value}
    assert differs == {"DUETIME_STORE_SHARD"}


@pytest.mark.parametrize("name", CALLERS)
def test_callers_know_all_copies_and_wait_for_them(name: str) -> None:
    settings = settings_of(name, SERVICES[name])
    assert isinstance(settings, StoreClientSettings)
    assert parse_stores(settings.stores) == {0: "|".join(f"{copy}:9801" for copy in COPIES)}
    needs = SERVICES[name]["depends_on"]
    assert {needs[copy]["condition"] for copy in COPIES} == {"service_healthy"}


def test_project_and_its_volumes_are_not_those_of_the_plain_file() -> None:
    files = [yaml.safe_load((PROJECT / file).read_text()) for file in REPLICATED]
    assert files[0]["name"] != files[1]["name"]
    named = {volume for service in SERVICES.values() for volume in mounts_of(service).values()}
    assert {name for name in named if not name.startswith("./")} == volumes_of(REPLICATED)


def test_spark_reads_the_log_of_one_copy() -> None:
    assert [word for word in SERVICES["backlog"]["command"] if word.endswith("/store")] == ["/var/lib/duetime/0/store"]
