"""Compose file and Dockerfile without an engine: users, read-only roots, secrets, who may reach what."""

import json
import re
import shlex
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from nerve.common.settings import FROM_FILES, PREFIX, Settings
from nerve.protocol import Catalog

ROOT = Path(__file__).parents[3]
CONTAINERS = ROOT / "deploy/containers"
OURS = {"brain", "hands", "hands-shell"}
JOBS = {"credentials", "prepare"}
SIDES = {"brain": "brain", "hands": "hands", "hands-shell": "hands"}
IN_AN_ADDRESS = re.compile(r"://[^/\s:@${]+:[^/\s@${]+@")
ASSIGNED = re.compile(r"(password|secret|secret_key|token)\s*(=|:\s)\s*[\"']?\w", re.I)


def compose() -> dict[str, Any]:
    text = (ROOT / "deploy/compose.yaml").read_text(encoding="utf-8")
    return cast("dict[str, Any]", yaml.safe_load(text))


SERVICES: dict[str, dict[str, Any]] = compose()["services"]


def instructions() -> list[tuple[str, str]]:
    """(instruction, rest) of the Dockerfile, with continued lines joined."""
    text = (CONTAINERS / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        (name, rest) for name, _, rest in (x.partition(" ") for x in joined.splitlines()) if name
    ]


def of(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def variables(service: str) -> dict[str, Any]:
    return cast("dict[str, Any]", SERVICES[service].get("environment", {}))


def mounted(service: str) -> dict[str, str]:
    """Source by target of what a service mounts."""
    pairs: list[str] = SERVICES[service].get("volumes", [])
    # The colon of a variable's default is no separator.
    split = [re.sub(r"\$\{(\w+):-[^}]*\}", r"$\1", each).split(":") for each in pairs]
    return {parts[1]: parts[0] for parts in split}


@pytest.mark.capability("H3.1")
def test_there_is_a_target_for_brain_and_one_for_hands_on_a_base_that_can_be_chosen() -> None:
    stages = [each.split() for each in of("FROM")]
    assert {"brain", "hands"} <= {stage[2] for stage in stages if len(stage) == 3}
    known = {stage[2] for stage in stages}
    assert {"${BASE}"} == {stage[0] for stage in stages} - known


def test_the_images_run_as_a_numbered_user_and_start_the_host_itself() -> None:
    assert ["10001:10001"] == of("USER")
    assert [["nerve", "brain"], ["nerve", "hands"]] == [json.loads(x) for x in of("ENTRYPOINT")]
    # An ENTRYPOINT forgets the CMD of the stage below it, so each target has its own after it.
    assert [["app.py"]] * 2 == [json.loads(x) for x in of("CMD")]
    names = [name for name, _ in instructions() if name in ("ENTRYPOINT", "CMD", "FROM")]
    assert ["FROM", "ENTRYPOINT", "CMD"] * 2 == names[-6:]
    assert ["SIGTERM"] == of("STOPSIGNAL")
    assert [] == of("SHELL")


def test_the_state_is_a_volume_and_the_health_check_asks_for_readiness() -> None:
    assert ["/var/lib/nerve"] == of("VOLUME")
    [check] = of("HEALTHCHECK")
    assert '["python", "-m", "nerve.deploy.health"]' in check


def test_packages_are_wheels_only_and_the_model_s_client_is_brain_s_alone() -> None:
    installs = [each for each in of("RUN") if "pip install" in each]
    assert installs
    assert all("--only-binary=:all:" in each or "--no-index" in each for each in installs)
    text = (CONTAINERS / "Dockerfile").read_text(encoding="utf-8")
    hands = text[text.index("AS hands-packages") :]
    assert "openai" not in hands
    assert "openai" in text[text.index("AS brain-packages") : text.index("AS hands-packages")]


def test_what_goes_into_a_build_is_listed_and_nothing_else() -> None:
    ignored = (CONTAINERS / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in ignored if line and not line.startswith("#")]
    assert "*" == rules[0]
    kept = {line[1:] for line in rules if line.startswith("!")}
    assert all((ROOT / each).exists() for each in kept)
    assert kept.isdisjoint({"tests", "deploy", "docs", "examples", "."})


@pytest.mark.parametrize("name", sorted(OURS | JOBS))
def test_what_is_ours_has_a_read_only_root_and_no_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert ["ALL"] == service["cap_drop"]
    assert ["no-new-privileges:true"] == service["security_opt"]
    assert service["init"] is True
    assert "privileged" not in service
    assert "cap_add" not in service


def test_only_the_job_that_makes_passwords_is_root_and_it_has_no_network() -> None:
    users = {name: each["user"] for name, each in SERVICES.items() if "user" in each}
    assert {"credentials": "0:0"} == users
    assert "none" == SERVICES["credentials"]["network_mode"]


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_host_is_given_longer_to_stop_than_it_drains(name: str) -> None:
    grace = float(str(SERVICES[name]["stop_grace_period"]).removesuffix("s"))
    default = re.fullmatch(
        r"\$\{NERVE_DRAIN_SECONDS:-(\d+)\}", variables(name)["NERVE_DRAIN_SECONDS"]
    )
    assert default is not None
    assert Settings().drain_seconds <= float(default[1]) < grace
    assert any(each.startswith("/var/lib/nerve:") for each in SERVICES[name]["tmpfs"])


def test_every_server_has_a_health_check_and_hosts_wait_for_it() -> None:
    for name in set(SERVICES) - OURS - JOBS:
        assert SERVICES[name]["healthcheck"]["test"], name
    for name in OURS:
        conditions = {key: each["condition"] for key, each in SERVICES[name]["depends_on"].items()}
        assert {
            "prepare": "service_completed_successfully",
            "broker": "service_healthy",
            "ledgers": "service_healthy",
        } == conditions


def test_no_file_holds_a_secret() -> None:
    committed = [ROOT / "deploy/compose.yaml", ROOT / "deploy/.env", *CONTAINERS.iterdir()]
    found: list[str] = []
    for path in committed:
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            patterns = [IN_AN_ADDRESS] if path.suffix == ".py" else [IN_AN_ADDRESS, ASSIGNED]
            found += [f"{path.name}: {each[0]}" for p in patterns for each in p.finditer(text)]
    assert [] == found


@pytest.mark.parametrize("name", sorted(OURS | JOBS))
def test_secrets_come_as_files_and_no_variable_holds_one(name: str) -> None:
    values = variables(name)
    assert not {PREFIX + each.upper() for each in FROM_FILES} & values.keys()
    assert not [key for key in values if re.search("PASSWORD|SECRET|TOKEN|_KEY", key)]


def test_each_side_mounts_its_own_secrets_only() -> None:
    for name, side in SIDES.items():
        assert f"{side}-secrets" == mounted(name)["/run/secrets"]
        others = [each for each in mounted(name).values() if each.endswith("-secrets")]
        assert [f"{side}-secrets"] == others
    makers = [n for n in SERVICES if "all-secrets" in mounted(n).values()]
    assert ["credentials"] == makers
    owners = {n for n in SERVICES if "owner-secrets" in mounted(n).values()}
    assert {"credentials", "prepare"} == owners


def test_each_side_has_a_network_of_its_own_to_the_ledgers() -> None:
    networks = compose()["networks"]
    for name, side in SIDES.items():
        assert ["wire", f"{side}-ledger"] == SERVICES[name]["networks"]
        assert networks[f"{side}-ledger"]["internal"] is True
    assert "ports" not in {key for each in SERVICES.values() for key in each}


@pytest.mark.capability("H3.3")
def test_a_pool_is_a_service_with_a_route_and_a_ledger_of_its_own() -> None:
    assert ("hands", "hands") == pool("hands")
    assert ("shell", "shell") == pool("hands-shell")
    assert "hands,shell" == variables("prepare")["POOLS"]
    for name in ("hands", "hands-shell"):
        assert "container_name" not in SERVICES[name]
        assert "ports" not in SERVICES[name]


def pool(service: str) -> tuple[str, str]:
    values = variables(service)
    return values["NERVE_ROUTE"], values["NERVE_DATABASE_SCHEMA"]


@pytest.mark.capability("H3.2")
def test_compose_brings_broker_ledgers_and_one_object_store_by_profile() -> None:
    assert {"broker", "ledgers", "minio", "s3proxy"} == set(SERVICES) - OURS - JOBS
    for name in ("minio", "s3proxy"):
        assert [name] == SERVICES[name]["profiles"]
    assert "COMPOSE_PROFILES=minio" in (ROOT / "deploy/.env").read_text()
    assert "COMPOSE_PROFILES=s3proxy" in (CONTAINERS / "local.env").read_text()


def test_every_image_can_be_another() -> None:
    images = {each["image"] for each in SERVICES.values()}
    named = {re.match(r"\$\{(NERVE_\w+_IMAGE):-", each) for each in images}
    assert None not in named
    local = (CONTAINERS / "local.env").read_text(encoding="utf-8")
    given = {line.split("=")[0] for line in local.splitlines() if line.startswith("NERVE_")}
    known = {str(each[1]) for each in named if each is not None} | {"NERVE_PYTHON_IMAGE"}
    assert given <= known


def test_what_compose_mounts_exists() -> None:
    for each in compose()["configs"].values():
        assert (ROOT / "deploy" / each["file"]).is_file()
    for name in OURS:
        source = mounted(name)["/app"]
        assert source in ("$NERVE_BRAIN_APP", "$NERVE_HANDS_APP")


def test_the_example_s_catalog_is_the_one_its_tools_export() -> None:
    from nerve.deploy.app import load

    exported = (ROOT / "examples/pools/brain/catalog.json").read_bytes()
    hands = load(ROOT / "examples/pools/hands/app.py")
    assert hands.catalog().export() == Catalog.load(exported).export()
    assert ("hands", "shell") == hands.routes()
    brain = load(ROOT / "examples/pools/brain/app.py")
    assert () == brain.routes()
    assert ["helper"] == [each.definition.agent for each in brain.need_agents()]


@pytest.mark.report("U118")
def test_no_shell_stands_between_the_engine_and_a_host() -> None:
    for name in OURS:
        assert "entrypoint" not in SERVICES[name]
        assert "command" not in SERVICES[name]
    for rest in (*of("ENTRYPOINT"), *of("CMD")):
        assert rest.startswith("["), shlex.join(rest.split())
