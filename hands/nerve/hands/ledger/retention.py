"""What a Hands ledger forgets after a time, beside the executions that were settled (see `settle`).

An execution stays until Brain has applied its result and no copy of its command can come any more; evidence
and decisions stay at least as long as the execution that they are about.
"""

from nerve.common.settings import Settings
from nerve.common.sql import sql
from nerve.common.sql.retention import Kind, common_kinds

OBSERVATIONS = sql(
    "select o.id, case when not exists (select 1 from execution e"
    " where e.id = o.execution and e.state = 'UNKNOWN') then 1 else 0 end as due"
    " from observation o where o.observed_at < :before"
    " and o.id > cast('0' || :after as bigint) order by o.id limit :limit"
)
REMOVE_OBSERVATION = (sql("delete from observation where id = :id"),)
DECISIONS = sql(
    "select r.request_id as id, case when r.reconciled_at < :before and not exists"
    " (select 1 from execution e where e.id = r.execution) then 1 else 0 end as due"
    " from receipt r where r.request_id > :after order by r.request_id limit :limit"
)
REMOVE_DECISION = (sql("delete from receipt where request_id = :id"),)
CLAIMS = sql(
    "select c.execution as id, case when c.until < :before and not exists"
    " (select 1 from execution e where e.id = c.execution and e.state = 'UNKNOWN')"
    " then 1 else 0 end as due from claim c where c.execution > :after"
    " order by c.execution limit :limit"
)
REMOVE_CLAIM = (sql("delete from claim where execution = :id"),)


def kinds(settings: Settings) -> list[Kind]:
    """Everything that goes, and after how many days."""
    return [
        Kind(
            name="observations",
            keep_days=settings.keep_observations_days,
            walk=OBSERVATIONS,
            remove=REMOVE_OBSERVATION,
        ),
        Kind(
            name="decisions",
            keep_days=settings.keep_decisions_days,
            walk=DECISIONS,
            remove=REMOVE_DECISION,
        ),
        Kind(
            name="claims",
            keep_days=settings.keep_observations_days,
            walk=CLAIMS,
            remove=REMOVE_CLAIM,
        ),
        *common_kinds(
            hosts_days=settings.keep_hosts_days, quarantined_days=settings.keep_quarantined_days
        ),
    ]
