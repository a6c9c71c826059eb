"""The bars on real servers: ratios to peers on the same servers in the same rounds."""

from bench.bars import Bar, doubled, ratio, share, value
from bench.runner import SCALED, Results

RABBIT, ROCKET = "nerve-rabbitmq", "nerve-rocketmq"
DURABLE, PLAIN = "absurd", "taskiq"


def server_bars(results: Results) -> list[Bar]:
    def over(peer: str, path: str) -> float | None:
        return ratio(results, RABBIT, peer, path)

    def least(name: str, found: float | None, must: float, aim: float | None = None) -> Bar:
        return Bar(name=name, value=found, must=must, aim=aim, at_least=True)

    def most(name: str, found: float | None, must: float, aim: float | None = None) -> Bar:
        return Bar(name=f"{RABBIT} {name}", value=found, must=must, aim=aim)

    rate, cpu, p50 = "at_64.turns_s", "at_64.cpu_ms_turn_all", "idle.p50_ms"
    return [
        least(f"{RABBIT} rate at 64 outstanding, times Absurd's", over(DURABLE, rate), 6, 12),
        least(f"{RABBIT} rate at 64 outstanding, times taskiq's", over(PLAIN, rate), 3, 6),
        most(
            "CPU a turn at 64 with the servers, share of Absurd's", over(DURABLE, cpu), 0.1, 1 / 22
        ),
        most("commits a turn at 64", value(results, RABBIT, "at_64.commits_turn"), 0.5, 0.25),
        most("p50 one at a time, share of Absurd's", over(DURABLE, p50), 1 / 2, 1 / 3),
        most("p50 one at a time, share of taskiq's", over(PLAIN, p50), 3 / 4, 1 / 2),
        most("idle CPU of our processes, %", share(value(results, RABBIT, "quiet.cpu_share")), 1),
        most("effects missing or doubled", doubled(results, RABBIT), 0),
        least(f"{ROCKET} rate at 64, times {RABBIT}'s", ratio(results, ROCKET, RABBIT, rate), 0.5),
    ]


def scale_bars(results: Results) -> list[Bar]:
    """More replicas on one ledger must not cost what one of each gives; two cores give no more."""
    rates = [
        Bar(
            name=f"rate at 64 with {name}, times that with one of each",
            value=ratio(results, name, RABBIT, "at_64.turns_s"),
            must=0.85,
            at_least=True,
        )
        for name in SCALED
    ]
    doubles = [
        Bar(name=f"effects missing or doubled with {name}", value=doubled(results, name), must=0)
        for name in SCALED
    ]
    return rates + doubles
