"""`make integration`: RabbitMQ, RocketMQ 5, two PostgreSQL and an S3 store as containers of this run, and the
suites of the ports, of kills and of faults against them. Nothing else is used and nothing may be skipped.

    python -m integration.run [--report DIR] [SUITE...]

Exit 0: all passed, none skipped. 1: a test failed or was skipped. 3: no engine or image; says how to get them.
"""

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from support import engine
from support.servers.containers import POSTGRES, RABBITMQ, ROCKETMQ, S3, ContainerServer, sweep
from support.services import Unavailable

ROOT = Path(__file__).parents[2]
MISSING = 3
SUITE_SECONDS = 3600
# What a container of a server cannot show, and why. `test_server_faults.py` freezes containers.
NATIVE_ONLY = {
    "test_tls_with_an_authority_of_ones_own": "its server has certificates made here",
    "test_a_private_authority_is_trusted_where_it_is_named_and_nowhere_else": "the same",
    "test_a_server_that_asks_for_keys_takes_the_right_ones_only": "its server is told keys of its own",
    "test_a_server_frozen_for_longer_than_every_deadline_loses_nothing": "it signals processes by id",
}
CONFORMANCE = [
    "tests/conformance/broker",
    "tests/conformance/ledger",
    "tests/conformance/objects",
]
KILLS = [
    "tests/e2e/servers/test_postgres_processes.py",
    "tests/e2e/servers/test_rocketmq.py",
    "tests/e2e/servers/test_rocketmq_kills.py",
]
FAULTS = [
    "tests/e2e/servers/test_postgres_faults.py",
    "tests/e2e/servers/test_postgres_schema.py",
    "tests/integration/test_server_faults.py",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    name: str
    paths: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one suite came to, and the names of what did not pass."""

    suite: str
    tests: int
    failed: Sequence[str]
    skipped: Sequence[str]
    seconds: float


SUITES = {
    each.name: each
    for each in (
        Suite(name="conformance", paths=CONFORMANCE),
        Suite(name="kills", paths=KILLS),
        Suite(name="faults", paths=FAULTS),
    )
}
SERVERS = {
    "rabbitmq": RABBITMQ,
    "rocketmq": ROCKETMQ,
    "postgres-brain": POSTGRES,
    "postgres-hands": POSTGRES,
    "s3": S3,
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--report", type=Path, default=ROOT / "build/integration")
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], metavar="SUITE")
    given = parser.parse_args(arguments)
    why = engine.lacking()
    if why:
        return missing(why)
    given.report.mkdir(parents=True, exist_ok=True)
    sweep()
    with ExitStack() as stack:
        try:
            running = dict(started(stack))
        except Unavailable as error:
            return missing(str(error))
        chosen = [SUITES[name] for name in (given.suites or SUITES)]
        outcomes = [ran(suite, environment(running), given.report) for suite in chosen]
    report = "\n".join(told(running, outcomes))
    (given.report / "report.md").write_text(report + "\n", encoding="utf-8")
    print(report)
    return 1 if any(each.failed or each.skipped for each in outcomes) else 0


def missing(why: str) -> int:
    print(f"integration: {why}", file=sys.stderr)
    print(f"integration: {engine.HOW}", file=sys.stderr)
    return MISSING


def started(stack: ExitStack) -> Iterator[tuple[str, ContainerServer]]:
    for name, recipe in SERVERS.items():
        server = ContainerServer(recipe)
        stack.callback(server.drop)
        server.start()
        print(f"{name}: {recipe.image} ready after {server.ready_seconds:.1f} s", flush=True)
        yield name, server


def environment(running: Mapping[str, ContainerServer]) -> dict[str, str]:
    """Where the tests find the servers; native ones are not to be had."""
    found = dict(os.environ)
    for name, server in running.items():
        found |= {} if name == "postgres-hands" else server.addresses
        key = name.replace("-", "_").upper()
        found[f"NERVE_TEST_CONTAINER_{key}"] = server.id
    hands = running["postgres-hands"].addresses["NERVE_TEST_POSTGRES_URL"]
    found["NERVE_TEST_POSTGRES_HANDS_URL"] = hands
    found |= {"NERVE_TEST_SERVERS": "containers", "NERVE_REQUIRE": "all"}
    return found


def ran(suite: Suite, variables: Mapping[str, str], folder: Path) -> Outcome:
    xml = folder / f"{suite.name}.xml"
    xml.unlink(missing_ok=True)
    began = time.monotonic()
    here = " and ".join(f"not {name}" for name in NATIVE_ONLY)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "external", "-k", here]
    command += [f"--junitxml={xml}", "-p", "no:cacheprovider", *suite.paths]
    with (folder / f"{suite.name}.log").open("w") as log:
        subprocess.run(
            command,
            env=variables,
            cwd=ROOT,
            stdout=log,
            stderr=log,
            check=False,
            timeout=SUITE_SECONDS,
        )
    return outcome(suite.name, xml, time.monotonic() - began)


def outcome(name: str, xml: Path, seconds: float) -> Outcome:
    if not xml.exists():
        return Outcome(
            suite=name, tests=0, failed=["it wrote no result"], skipped=[], seconds=seconds
        )
    cases = list(ElementTree.parse(xml).getroot().iter("testcase"))
    failed = [named(each) for each in cases if each.find("failure") is not None]
    failed += [named(each) for each in cases if each.find("error") is not None]
    skipped = [named(each) for each in cases if each.find("skipped") is not None]
    if not cases:
        failed = ["it has no tests"]
    return Outcome(suite=name, tests=len(cases), failed=failed, skipped=skipped, seconds=seconds)


def named(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}"


def told(running: Mapping[str, ContainerServer], outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield "| container | image | ready after |"
    yield "| --- | --- | --- |"
    for name, server in running.items():
        yield f"| {name} | {server.recipe.image} | {server.ready_seconds:.1f} s |"
    yield ""
    yield "| suite | tests | failed | skipped | seconds |"
    yield "| --- | --- | --- | --- | --- |"
    for each in outcomes:
        yield (
            f"| {each.suite} | {each.tests} | {len(each.failed)} | {len(each.skipped)}"
            f" | {each.seconds:.0f} |"
        )
    for each in outcomes:
        yield from (f"FAILED {name}" for name in each.failed)
        yield from (f"SKIPPED {name}" for name in each.skipped)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
