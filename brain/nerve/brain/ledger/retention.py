"""What a Brain's ledger forgets after a time, and what keeps it until then.

Nothing of an unfinished Turn goes, nor what Hands were not told, nor an outcome that nobody knows. Sessions,
Turns, requests and history stay: lists, receipts and the same answer to the same request outlive it all.
"""

from nerve.brain.ledger.inquiries import OPEN_CALL
from nerve.common.settings import Settings
from nerve.common.sql import sql
from nerve.common.sql.retention import Kind, common_kinds

EVENTS_AT_ONCE = 500

# The longest prefix of the Session's events in which every one is old and of no unfinished Turn.
EVENTS = sql(
    "select w.id, w.until, case when w.until > w.pruned then 1 else 0 end as due from"
    " (select s.id, s.pruned, coalesce((select min(e.sequence) - 1 from event e"
    " left join turn t on t.id = e.turn where e.session = s.id and e.sequence > s.pruned"
    f" and e.sequence <= s.pruned + {EVENTS_AT_ONCE}"
    " and (e.created_at >= :before or (t.id is not null and t.ended_at is null))),"
    f" case when s.pruned + {EVENTS_AT_ONCE} < s.sequence then s.pruned + {EVENTS_AT_ONCE}"
    " else s.sequence end) as until"
    " from session s where s.id > :after order by s.id limit :limit) w order by w.id"
)
REMOVE_EVENTS = (
    sql("update session set pruned = :until where id = :id and pruned < :until"),
    sql("delete from event where session = :id and sequence <= :until"),
)
# Runs are written for every Turn that had anything else of this.
DETAILS = sql(
    "select t.id, case when t.ended_at < :before and not exists (select 1 from intent i"
    " where i.turn = t.id and (i.state <> 'APPLIED' or i.outcome = 'UNKNOWN'"
    " or (i.kind = 'remote' and i.settled = 0))) then 1 else 0 end as due"
    " from (select distinct turn from run where turn > :after order by turn limit :limit) r"
    " join turn t on t.id = r.turn order by t.id"
)
REMOVE_DETAILS = (
    sql("delete from receipt where turn = :id"),
    sql("delete from intent where turn = :id and state = 'APPLIED'"),
    sql("delete from step where turn = :id"),
    sql("delete from run where turn = :id"),
)
CHECKPOINTS = sql(
    "select h.id, case when h.state = 'CLOSED' and h.phase = 'IDLE' and h.closed_at < :before"
    " and exists (select 1 from journal j where j.thread = h.id) then 1 else 0 end as due"
    " from thread h where h.id > :after order by h.id limit :limit"
)
REMOVE_CHECKPOINTS = (sql("delete from journal where thread = :id"),)
WANTED = f"{OPEN_CALL} union all select 1 from journal where journal.thread = object.owner"
"""While an object is kept: its owner is a call that is not over, or a Thread that has checkpoints."""
OBSERVATIONS = sql(
    "select o.id, case when not exists (select 1 from intent i"
    " where i.execution = o.execution and i.outcome = 'UNKNOWN') then 1 else 0 end as due"
    " from observation o where o.created_at < :before"
    " and o.id > cast('0' || :after as bigint) order by o.id limit :limit"
)
REMOVE_OBSERVATION = (sql("delete from observation where id = :id"),)


def kinds(settings: Settings) -> list[Kind]:
    """Everything that goes, and after how many days."""
    return [
        Kind(
            name="events",
            keep_days=settings.keep_events_days,
            walk=EVENTS,
            remove=REMOVE_EVENTS,
            again=True,
        ),
        Kind(
            name="details",
            keep_days=settings.keep_details_days,
            walk=DETAILS,
            remove=REMOVE_DETAILS,
        ),
        Kind(
            name="checkpoints",
            keep_days=settings.keep_checkpoints_days,
            walk=CHECKPOINTS,
            remove=REMOVE_CHECKPOINTS,
        ),
        Kind(
            name="observations",
            keep_days=settings.keep_observations_days,
            walk=OBSERVATIONS,
            remove=REMOVE_OBSERVATION,
        ),
        *common_kinds(
            hosts_days=settings.keep_hosts_days, quarantined_days=settings.keep_quarantined_days
        ),
    ]
