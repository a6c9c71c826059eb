"""When an observer may take a host for dead: never by a clock of the host, never by one look."""

import pytest

from nerve.common.lease import LOOKS_MIN, Sight, dead
from nerve.common.liveness import LockSight

LEASE, GRACE = 30.0, 5.0


def sight(
    lock: LockSight,
    *,
    gone: bool = False,
    still: float = 0.0,
    looks: int = LOOKS_MIN,
    lost: float = 0.0,
) -> Sight:
    return Sight(lock=lock, gone=gone, still_seconds=still, looks=looks, lock_lost_seconds=lost)


@pytest.mark.rule(3, 4)
@pytest.mark.law(3)
def test_a_heartbeat_must_stand_still_for_the_lease_and_over_several_looks() -> None:
    held = [lock for lock in LockSight if lock is not LockSight.FREE]
    assert held
    for lock in held:
        found = [
            dead(sight(lock, still=still, looks=looks), lease_seconds=LEASE, grace_seconds=GRACE)
            for still, looks in (
                (29.9, 1000),
                (30.0, LOOKS_MIN - 1),
                (3600.0, 1),
                (30.0, LOOKS_MIN),
            )
        ]
        assert found == [False, False, False, True], lock


@pytest.mark.rule(3)
def test_a_free_lock_releases_a_process_that_is_gone_at_once_and_another_after_a_grace() -> None:
    free = LockSight.FREE

    def judged(grace: float, **seen: float) -> bool:
        return dead(sight(free, **seen), lease_seconds=LEASE, grace_seconds=grace)  # type: ignore[arg-type]

    assert dead(sight(free, gone=True, looks=1), lease_seconds=LEASE, grace_seconds=GRACE)
    assert not judged(GRACE, lost=4.9)
    assert judged(GRACE, lost=5.0)
    assert judged(0.0)
