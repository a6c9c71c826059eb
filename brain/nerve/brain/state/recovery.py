"""How often and when a failed invocation is tried again. The policy is stored with the first failure.

Neither a restart nor another host's configuration changes a stored policy or its count.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPolicy:
    """`retries` more tries, `first_seconds` doubling to `most_seconds`."""

    retries: int = 3
    first_seconds: float = 1.0
    most_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Try again at `at` (ms); this was failure number `count`."""

    count: int
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhausted:
    """The budget is spent, or the failure cannot be tried again."""

    count: int


def after_failure(
    policy: RecoveryPolicy, *, count: int, retryable: bool, now: int
) -> Retry | Exhausted:
    """What follows failure number `count + 1` of a Turn."""
    count += 1
    if not retryable or count > policy.retries:
        return Exhausted(count=count)
    wait = min(policy.most_seconds, policy.first_seconds * 2.0 ** (count - 1))
    return Retry(count=count, at=now + int(wait * 1000))
