"""RocketMQ without a server: names, addresses, signatures, and stubs that do nothing but exist."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nerve.common.broker import rocketmq_stubs
from nerve.common.broker.rocketmq_address import rocketmq_at
from nerve.common.broker.rocketmq_link import RocketSettings, pause, signature
from nerve.common.broker.rocketmq_names import admin_commands, physical
from nerve.common.logs import redact
from nerve.protocol import topics
from nerve.protocol.errors import BadInput, InvalidName
from support.rocketmq_proxy import client_or_skip

ROUTE = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True)
KEYS = {"NERVE_ROCKETMQ_ACCESS_KEY": "ak", "NERVE_ROCKETMQ_SECRET_KEY": "s3cret"}


def at(url: str, environment: dict[str, str] | None = None) -> RocketSettings:
    return rocketmq_at(url, environment or {}, publish_seconds=7)


@given(st.lists(ROUTE, min_size=2, max_size=4), st.lists(ROUTE, min_size=2, max_size=4))
def test_two_names_never_become_one(first: list[str], second: list[str]) -> None:
    same = first == second
    assert (physical(".".join(first)) == physical(".".join(second))) is same


@given(ROUTE, ROUTE)
def test_every_derived_name_is_one_that_the_server_allows(deployment: str, route: str) -> None:
    for topic in (
        topics.commands(deployment, route if route != "updates" else "u"),
        topics.updates(deployment, route),
    ):
        for name in (topic, topics.group(topic)):
            assert set(physical(name)) <= set(
                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
            )


def test_a_name_reads_as_it_was_meant() -> None:
    assert physical("nerve.local.hands.commands") == "nerve-local-hands-commands"
    assert physical("nerve.a-b.c.commands.group") == "nerve-a--b-c-commands-group"


@pytest.mark.parametrize("name", ["", "a..b", "a.-b", ".a", "ä", "a b", "%RETRY%a", "a/b", "a\n"])
def test_a_name_that_could_be_confused_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        physical(name)


def test_a_name_that_is_too_long_is_refused_with_the_limit() -> None:
    with pytest.raises(InvalidName, match="120"):
        physical("a" * 121)


def test_the_commands_of_an_operator_name_topic_group_and_first_offset() -> None:
    topic, group, offset = admin_commands("t", "g").splitlines()
    assert "updateTopic" in topic and "-t t -r 1 -w 1 -a +message.type=NORMAL" in topic
    assert "updateSubGroup" in group and "-g g -r 999" in group
    assert "resetOffsetByTime" in offset and "-g g -t t -s 0" in offset


def test_an_address_with_its_options() -> None:
    found = at("rocketmq://mq.example:9000?tls=true&ca_file=/ca.pem&namespace=n&prefix=p.", KEYS)
    assert found == RocketSettings(
        endpoint="mq.example:9000",
        access_key="ak",
        secret_key="s3cret",
        namespace="n",
        prefix="p.",
        tls=True,
        ca_file="/ca.pem",
        publish_seconds=7,
    )
    assert "s3cret" not in repr(found)
    assert found.shown == "rocketmqs://mq.example:9000"


def test_an_address_alone() -> None:
    assert at("rocketmq://h") == RocketSettings(endpoint="h:8081", publish_seconds=7)
    assert at("rocketmq://[::1]:1").endpoint == "[::1]:1"
    assert at("rocketmq://h?ca_file=/ca.pem").tls


def test_keys_in_the_address_go_before_those_of_the_environment() -> None:
    found = at("rocketmq://other:p%40ss@h", KEYS)
    assert (found.access_key, found.secret_key) == ("other", "p@ss")


@pytest.mark.parametrize(
    ("url", "environment"),
    [
        ("rocketmq://", {}),
        ("rocketmq://h/topic", {}),
        ("rocketmq://h:port", {}),
        ("rocketmq://h?tsl=true", {}),
        ("rocketmq://h?tls=maybe", {}),
        ("rocketmq://h?tls=false&ca_file=x", {}),
        ("rocketmq://h", {"NERVE_ROCKETMQ_ACCESS_KEY": "ak"}),
        ("rocketmq://h", {"NERVE_ROCKETMQ_SECRET_KEY": "sk"}),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused(url: str, environment: dict[str, str]) -> None:
    with pytest.raises(BadInput) as caught:
        at(url, environment)
    assert "rocketmq://host:8081" in caught.value.next_step


def test_a_signature_is_the_one_of_the_official_client() -> None:
    assert signature("ak", "sk", "20261201T080000Z") == (
        "MQv2-HMAC-SHA1 Credential=ak, SignedHeaders=x-mq-date-time,"
        " Signature=743713ee21649da0a9043f484717c2f5bd9f85a1"
    )


def test_pauses_grow_and_are_uneven() -> None:
    assert 0.05 <= pause(1) <= 0.1
    assert 1.0 <= pause(50) <= 2.0
    assert len({pause(3) for _ in range(20)}) > 1


def test_a_secret_in_an_address_is_masked() -> None:
    assert "p4ssword" not in redact("rocketmq://ak:p4ssword@h:8081?tls=true")


def test_the_other_package_is_refused_with_the_command_that_removes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rocketmq_stubs, "distribution", str)
    with pytest.raises(BadInput) as caught:
        rocketmq_stubs.refuse_the_other()
    assert "rocketmq-client-python" in str(caught.value)
    assert "pip uninstall -y rocketmq-client-python" in caught.value.next_step


IMPORTED = """
import logging, sys
root = logging.getLogger()
handler = logging.FileHandler("own.log", mode="w")
root.addHandler(handler)
from nerve.common.broker.rocketmq_stubs import load
stubs = load()
assert root.handlers == [handler], root.handlers
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
assert "rocketmq" not in sys.modules and "rocketmq.v5" not in sys.modules
assert stubs.definition.Code.Name(20000) == "OK"
import os
assert os.listdir(os.environ["HOME"]) == [], os.listdir(os.environ["HOME"])
if len(sys.argv) > 1:
    import rocketmq
    from rocketmq.grpc_protocol import definition_pb2
    assert rocketmq.SimpleConsumer and definition_pb2 is stubs.definition
print("well")
"""


@pytest.mark.parametrize("then_the_package_itself", [False, True])
def test_the_stubs_come_without_the_side_effects_of_their_package(
    tmp_path: Path, then_the_package_itself: bool
) -> None:
    client_or_skip()
    home = tmp_path / "home"
    home.mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTED, *(["too"] if then_the_package_itself else [])],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.stdout == "well\n", ended.stderr


def test_importing_the_adapter_imports_no_client(tmp_path: Path) -> None:
    code = "import sys, nerve.common.broker.rocketmq; assert 'grpc' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
