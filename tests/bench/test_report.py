"""Ratios are taken within a round and bars say what they found."""

from typing import Any

from bench import bars, cli, report, server_bars
from bench.bars import Bar
from bench.runner import Results


def row(rate: float) -> dict[str, Any]:
    return {"at_64": {"turns_s": rate}, "idle": {"p50_ms": 2.0, "commits_turn": 5.0}}


def results() -> Results:
    found = Results()
    found.rounds = {
        "nerve-2p": [row(1000.0), row(3000.0), row(900.0)],
        "langgraph": [row(100.0), row(150.0), row(100.0)],
    }
    return found


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    assert bars.ratio(results(), "nerve-2p", "langgraph", "at_64.turns_s") == 10.0


def test_a_figure_that_nobody_measured_is_none() -> None:
    assert bars.ratio(results(), "nerve-2p", "dbos", "at_64.turns_s") is None
    assert bars.value(results(), "nerve-2p", "at_64.nothing") is None


def test_useless_rings_do_not_raise_the_floor() -> None:
    measured = {"idle": {"commits_turn": 5.0, "datagrams_turn": 400.0}}
    floor = bars.floor_ms(measured, {"commit_ms": 0.2, "hop_ms": 0.1}, least_hops=4)
    assert floor is not None
    assert abs(floor - 1.4) < 1e-9


def test_a_missed_or_unmeasured_bar_fails_the_whole_run() -> None:
    met = Bar(name="rate", value=9, must=8, aim=16, at_least=True)
    missed = Bar(name="share", value=0.2, must=1 / 6)
    unknown = Bar(name="floor", value=None, must=4)
    assert (met.state, missed.state) == ("met, aim not reached", "MISSED")
    assert cli.verdict([met], partial=False) == 0
    assert cli.verdict([met, missed], partial=True) == 1
    assert cli.verdict([met, unknown], partial=False) == 1
    assert cli.verdict([met, unknown], partial=True) == 0


def test_the_report_names_each_bar_and_what_was_not_measured() -> None:
    found = results()
    found.skipped["dbos"] = "no network"
    for rows in found.rounds.values():
        for one in rows:
            one["settings"] = {"sync level": "full"}
            one["effects"] = {"lines": 1, "turns": 1}
    text = report.markdown(found, bars.bars(found), "shim")
    assert "rate at 64 outstanding, times LangGraph's | 10 | at least 8 | 16 | met" in text
    assert "**dbos** not measured: no network" in text


def test_on_servers_each_bar_is_a_ratio_to_its_own_peer() -> None:
    found = Results()
    found.rounds = {
        "nerve-rabbitmq": [row(1000.0), row(900.0)],
        "nerve-rocketmq": [row(400.0), row(450.0)],
        "absurd": [row(100.0), row(150.0)],
        "taskiq": [row(250.0), row(300.0)],
    }
    for one in found.rounds["nerve-rabbitmq"]:
        one["effects"] = {"lines": 3, "turns": 3}
    states = {bar.name: (bar.value, bar.state) for bar in server_bars.server_bars(found)}
    assert states["nerve-rabbitmq rate at 64 outstanding, times Absurd's"] == (
        8.0,
        "met, aim not reached",
    )
    assert states["nerve-rabbitmq rate at 64 outstanding, times taskiq's"][0] == 3.5
    assert states["nerve-rocketmq rate at 64, times nerve-rabbitmq's"] == (0.45, "MISSED")
    assert states["nerve-rabbitmq effects missing or doubled"] == (0.0, "met")


def test_more_replicas_are_compared_with_one_of_each_in_the_same_round() -> None:
    found = Results()
    found.rounds = {"nerve-rabbitmq": [row(100.0), row(50.0)], "2 Brains": [row(90.0), row(50.0)]}
    for rows in found.rounds.values():
        for one in rows:
            one["effects"] = {"lines": 1, "turns": 1}
    values = {bar.name: bar.value for bar in server_bars.scale_bars(found)}
    assert values["rate at 64 with 2 Brains, times that with one of each"] == 0.95
    assert values["rate at 64 with 4 Hands, times that with one of each"] is None
