"""Raw bytes on the broker's topics: each is refused by name and kept, and what stands beside it goes on."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from nerve.brain.ledger.backend import LocalBackend
from nerve.brain.runtime import DurableRuntime
from nerve.brain.state.turn import TurnPhase
from nerve.common.broker.sqlite import SqliteBroker
from nerve.common.wakeups import Doorbell
from nerve.protocol import topics
from nerve.protocol.canonical import canonical_bytes, digest
from nerve.protocol.catalog import Catalog
from nerve.protocol.commands import StartCommand
from nerve.protocol.errors import TooLarge
from nerve.protocol.identity import SessionKey
from support.apart import Apart, apart
from support.hands_world import Asker
from support.hostile import TEXTS
from support.waiting import until

APP = Path(__file__).parent / "app.py"
REFUSED = "select code, reason, topic, head from refused order by id"
Wanted = dict[str, tuple[bytes, str]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def changed(command: StartCommand, asker: Asker, **header: Any) -> bytes:
    fields = orjson.loads(asker.seal(command)) | header
    return canonical_bytes(fields)


def with_body(command: StartCommand, asker: Asker, **body: Any) -> bytes:
    """Another body under a true digest, as somebody would send who can seal."""
    fields = orjson.loads(asker.seal(command))
    fields["body"] |= body
    fields["digest"] = digest(canonical_bytes(fields["body"]))
    return canonical_bytes(fields)


def damaged(asker: Asker) -> Wanted:
    """What is not JSON at all, or not the JSON of one envelope."""
    whole = asker.seal(asker.call("echo", word="x"))
    made: Wanted = {
        name: (text.encode(), "invalid_json")
        for name, (text, _) in TEXTS.items()
        if name != "too deep"
    }
    return made | {
        "random bytes": (os.urandom(300).replace(b"\n", b"\t"), "invalid_json"),
        "nothing": (b"", "invalid_json"),
        "cut": (whole[: len(whole) // 2], "invalid_json"),
        "two envelopes without a break": (whole + whole, "invalid_json"),
        "trailing JSON": (whole + b'{"more":1}', "invalid_json"),
        "an array": (b"[]", "invalid_json"),
        "too deep": (TEXTS["too deep"][0].encode(), "invalid_json"),
        "duplicate header": (whole.replace(b'"kind":', b'"route":"hands","kind":'), "invalid_json"),
    }


def forged(asker: Asker) -> Wanted:
    """Envelopes that are well formed and not true, or not for here."""
    command = asker.call("echo", word="x")
    whole = asker.seal(command)
    zero = "sha256:" + "0" * 64
    long_id = "c" * 401
    scope = f"other/s-1/{command.execution}/arguments"
    reference = {"scope": scope, "digest": zero, "bytes": 10}
    return {
        "changed body": (whole.replace(b'"word":"x"', b'"word":"y"'), "digest_mismatch"),
        "wrong digest": (changed(command, asker, digest=zero), "digest_mismatch"),
        "extra member": (changed(command, asker, extra=1), "unknown_field"),
        "extra member of the body": (with_body(command, asker, extra=1), "unknown_field"),
        "newer major": (changed(command, asker, version="2.0"), "protocol_version"),
        "no version": (changed(command, asker, version="new"), "protocol_version"),
        "another protocol": (changed(command, asker, protocol="amqp"), "protocol_version"),
        "unknown kind": (changed(command, asker, kind="command.rm"), "protocol_version"),
        "another namespace": (changed(command, asker, namespace="evil"), "bad_input"),
        "another route": (changed(command, asker, route="other"), "bad_input"),
        "another deployment": (changed(command, asker, deployment="prod"), "bad_input"),
        "over-long id": (with_body(command, asker, call_id=long_id), "invalid_name"),
        "another execution": (
            changed(command, asker, execution=command.turn + ".x99"),
            "bad_input",
        ),
        "a reference besides the body": (
            with_body(command, asker, arguments_ref=reference),
            "bad_input",
        ),
        "a reference of another session": (
            with_body(command, asker, arguments={}, arguments_ref=reference),
            "bad_input",
        ),
        "a control": (asker.query(command.execution), "bad_input"),
        "NUL in an argument": (
            with_body(command, asker, arguments={"word": "NUL"}).replace(b'"NUL"', b'"\\u0000"'),
            "invalid_json",
        ),
    }


@asynccontextmanager
async def published(at: Apart) -> AsyncGenerator[SqliteBroker]:
    bell = Doorbell.open(at.state)
    broker = SqliteBroker(at.state, bell)
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()
        bell.close()


@pytest.mark.report("U50", "U59", "U104", "U106", "U107", "U110")
@pytest.mark.rule(15)
@pytest.mark.law(10)
async def test_hands_refuse_every_hostile_command_by_name_and_run_the_good_ones_beside_them(
    tmp_path: Path,
) -> None:
    async with apart(tmp_path, APP) as at:
        await at.hands()
        asker = Asker(catalog())
        bad = damaged(asker) | forged(asker)
        good = [asker.call("echo", word=f"good {number}") for number in range(3)]
        async with published(at) as broker:
            topic = topics.commands("local", "hands")
            bundle = [raw for raw, _ in bad.values()]
            with pytest.raises(TooLarge, match="limit of 1,048,576"):
                await broker.publish(topic, [b"y" * 1_100_000])
            mixed = [asker.seal(good[0]), *bundle, asker.seal(good[1])]
            await broker.publish(topic, [b"\n".join(mixed)])
            await broker.publish(topic, [asker.seal(good[2])])
            await until(
                lambda: len(at.rows("hands-hands", REFUSED)) >= len(bad), "all were refused"
            )
            states = "select id, state from execution order by id"
            wanted = [{"id": each.execution, "state": "SUCCEEDED"} for each in good]
            await until(lambda: at.rows("hands-hands", states) == wanted, "the good ones ran")
        assert sorted(at.effects) == sorted(f"echo {each.execution} 1" for each in good)
        check(at.rows("hands-hands", REFUSED), bad)


def check(rows: Any, bad: Wanted) -> None:
    """Each with its own code; with a text that says where and what to do, and its first bytes."""
    found: dict[bytes, list[Any]] = {}
    for row in rows:
        found.setdefault(row["head"], []).append(row)
    for name, (raw, code) in bad.items():
        kept = found[raw[:512]]
        assert code in [row["code"] for row in kept], (name, [dict(row) for row in kept])
        assert all(len(row["reason"]) > 20 for row in kept), name
    assert len(rows) == len(bad)


@pytest.mark.report("U50", "U59")
@pytest.mark.rule(15)
async def test_a_brain_refuses_hostile_updates_and_its_turns_go_on(tmp_path: Path) -> None:
    async with apart(tmp_path, APP) as at:
        await at.brain()
        backend = await LocalBackend.open(at.state)
        async with backend, DurableRuntime(backend) as runtime, published(at) as broker:
            cell = backend.ledger.identity.id
            topic = topics.updates("local", cell)
            asker = Asker(catalog(), cell=cell)
            stray = asker.seal(asker.call("echo", word="x"))
            bad = {
                **{name: (text.encode(), "invalid_json") for name, (text, _) in TEXTS.items()},
                "a command": (stray, "refused"),
                "newer major": (
                    changed(asker.call("echo"), asker, version="9.0"),
                    "protocol_version",
                ),
            }
            await broker.publish(topic, [raw for raw, _ in bad.values()])
            await until(lambda: len(at.rows("brain", REFUSED)) == len(bad), "all were refused")
            check(at.rows("brain", REFUSED), bad)
            await at.hands()
            session = await runtime.session(SessionKey("acme", "s"), agent="hostile")
            result = await session.call("r", "echo", timeout=30)
            assert (result.phase, result.text) == (TurnPhase.COMPLETED, "echo echo")


def catalog() -> Catalog:
    os.environ.setdefault("APART_PLACE", "/nonexistent")
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("hostile_app", APP)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Catalog = module.tools
    return made
