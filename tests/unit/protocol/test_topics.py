"""Topics and groups come from deployment, route and cell, and never from a tenant."""

import inspect

import pytest

from nerve.protocol import topics
from nerve.protocol.errors import InvalidName


@pytest.mark.rule(24)
def test_topics_are_derived_from_deployment_and_route_and_cell() -> None:
    assert topics.commands("prod", "hands") == "nerve.prod.hands.commands"
    assert topics.controls("prod", "hands") == "nerve.prod.hands.controls"
    assert topics.updates("prod", "cell-1") == "nerve.prod.updates.cell-1"
    assert topics.group("nerve.prod.hands.commands") == "nerve.prod.hands.commands.group"
    parameters = {
        name
        for function in (topics.commands, topics.controls, topics.updates)
        for name in inspect.signature(function).parameters
    }
    assert parameters == {"deployment", "route", "cell"}


def test_no_route_shares_a_topic_with_a_cell() -> None:
    with pytest.raises(InvalidName, match="reserved"):
        topics.commands("prod", "updates")


@pytest.mark.parametrize("bad", ["", "A", "a.b", "a/b", "a*", "a#", "a" * 65, "ü"])
def test_names_that_a_broker_would_read_otherwise_are_refused(bad: str) -> None:
    for derive in (topics.commands, topics.controls, topics.updates):
        with pytest.raises(InvalidName):
            derive(bad, "hands")
        with pytest.raises(InvalidName):
            derive("prod", bad)
