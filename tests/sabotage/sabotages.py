"""One small change per entry that breaks a law: the tests marked for the law must notice it.

`old` stands exactly `times` in its file; where it does not, the entry is out of date and the run fails.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Sabotage:
    """`law` is the number of the law, or `rule:N` of a rule, whose tests must fail."""

    name: str
    law: str
    path: str
    old: str
    new: str
    times: int = 1


def _s(name: str, law: str, path: str, old: str, new: str, *, times: int = 1) -> Sabotage:
    return Sabotage(name=name, law=law, path=path, old=old, new=new, times=times)


COMMITTER = "common/nerve/common/sql/committer.py"
OUTBOX = "common/nerve/common/outbox.py"
INBOX = "common/nerve/common/inbox.py"
LEASE = "common/nerve/common/lease.py"
ADVANCE = "brain/nerve/brain/ledger/advance.py"

SABOTAGES: Final = (
    _s(
        "verdict-before-commit",
        "law:1",
        COMMITTER,
        '            self._mark()\n            faults.point("sql.before_commit")\n',
        "            self._mark()\n            self._connection.execute(sqlite.ROLLBACK)\n            return\n",
    ),
    _s(
        "acknowledged-before-accepted",
        "law:1",
        INBOX,
        "            if envelopes:\n                await self._accept(envelopes)\n",
        "            self._consumer.ack(deliveries)\n            if envelopes:\n                await self._accept(envelopes)\n",
    ),
    _s(
        "sent-before-commit",
        "law:2",
        OUTBOX,
        "        tx.after(lambda: relay.hand_over(rows))",
        "        relay.hand_over(rows)",
    ),
    _s(
        "fence-without-token",
        "law:3",
        ADVANCE,
        " where id = :id and host = :host and token = :token and phase = 'RUNNING'",
        " where id = :id and (:host = :host or token = :token) and phase = 'RUNNING'",
        times=2,
    ),
    _s(
        "released-hosts-are-given-work",
        "law:3",
        LEASE,
        "    return await tx.one(LIVE, id=host) is not None",
        "    return True",
    ),
    _s(
        "lost-tools-run-again",
        "law:4",
        "hands/nerve/hands/state/record.py",
        "    if record.repeatable and record.attempt < ATTEMPTS_MAX:",
        "    if record.attempt < ATTEMPTS_MAX:",
    ),
    _s(
        "a-foreign-ledger-proves-that-nothing-ran",
        "law:4",
        "brain/nerve/brain/ledger/inquiries.py",
        "    return update.ledger.continues(seen)",
        "    return True",
    ),
    _s(
        "receipts-are-not-read",
        "law:5",
        "brain/nerve/brain/schedule/run_host.py",
        "        return self._known.get(key)",
        "        return None",
    ),
    _s(
        "content-is-not-compared",
        "law:6",
        "brain/nerve/brain/ledger/admission.py",
        '    for what in ("operation", "target", "digest"):',
        '    for what in ("operation", "target"):',
    ),
    _s(
        "every-request-is-new",
        "law:6",
        "brain/nerve/brain/ledger/admission.py",
        "            return Submitted(turn=known[0], known=True)",
        "            return Submitted(turn=unit.turn, known=True)",
    ),
    _s(
        "no-check-on-states",
        "law:7",
        "common/nerve/common/sql/schema.py",
        "    return sa.CheckConstraint(among(column, values), name=name)",
        '    return sa.CheckConstraint(f"{among(column, values)} or 1 = 1", name=name)',
    ),
    _s(
        "unknown-may-be-left-without-evidence",
        "law:7",
        "protocol/nerve/protocol/execution.py",
        "    return target in MOVES[source] and reconciling == (source is _S.UNKNOWN)",
        "    return target in MOVES[source]",
    ),
    _s(
        "gaps-between-events",
        "law:8",
        "brain/nerve/brain/ledger/events.py",
        "    row = await tx.one(ADVANCE, id=session, count=len(events))",
        "    row = await tx.one(ADVANCE, id=session, count=len(events) + 1)",
    ),
    _s(
        "reasoning-is-said-aloud",
        "law:8",
        "brain/nerve/brain/agents/answer.py",
        "        text=text,\n        calls=[_read(",
        "        text=text + said.reasoning,\n        calls=[_read(",
    ),
    _s(
        "nobody-looks-for-stranded-messages",
        "law:9",
        OUTBOX,
        "        self.hand_over(fresh)\n",
        "        self.hand_over(fresh[:0])\n",
    ),
    _s(
        "waiters-trust-their-hints",
        "law:9",
        "brain/nerve/brain/watch.py",
        "                self._keep_scanning()\n",
        "",
    ),
    _s(
        "duplicate-keys-pass",
        "law:10",
        "protocol/nerve/protocol/canonical.py",
        "catch_duplicate_keys=True",
        "catch_duplicate_keys=False",
    ),
    _s(
        "nul-passes",
        "law:10",
        "protocol/nerve/protocol/values.py",
        '    if "\\x00" in text:',
        '    if "\\x00" in text and not text:',
    ),
    _s(
        "a-wish-is-a-confirmation",
        "law:11",
        "hands/nerve/hands/state/cancel.py",
        "    if record.state is ExecutionState.ADMITTED:\n        return Cancelling(move=TOMBSTONE.of(record))\n",
        "    if record.state in (ExecutionState.ADMITTED, ExecutionState.STARTED):\n"
        "        return Cancelling(move=TOMBSTONE)\n",
    ),
    _s(
        "virtual-time-is-wall-time",
        "law:12",
        "common/nerve/common/clock.py",
        "        timer = clock.call_later(seconds, lambda:",
        "        timer = loop.call_later(seconds, lambda:",
    ),
    _s(
        "a-seed-decides-nothing",
        "law:12",
        "common/nerve/common/broker/unruly.py",
        "Random(disorder.seed)",
        "Random()",
    ),
    _s(
        "a-fence-is-only-a-number",
        "rule:2",
        ADVANCE,
        " where id = :id and host = :host and token = :token and phase = 'RUNNING'",
        " where id = :id and :host = :host and token = :token and phase = 'RUNNING'",
        times=2,
    ),
    _s(
        "one-look-is-enough",
        "rule:4",
        LEASE,
        "    if sight.still_seconds >= lease_seconds and sight.looks >= LOOKS_MIN:",
        "    if sight.still_seconds >= lease_seconds:",
    ),
    _s(
        "doubt-means-no",
        "rule:8",
        COMMITTER,
        "            if not self._committed(error):",
        "            if self._writer:",
    ),
    _s(
        "repeats-never-slow-down",
        "rule:14",
        "brain/nerve/brain/ledger/inquiries.py",
        "        return min(self.most_ms, self.first_ms << min(inquiries, 20))",
        "        return self.first_ms",
    ),
    _s(
        "refusals-are-forgotten",
        "rule:15",
        INBOX,
        "    await tx.run(\n        REFUSE,",
        "    if unit.code:\n        return\n    await tx.run(\n        REFUSE,",
    ),
    _s(
        "what-cannot-be-stored-has-failed",
        "rule:20",
        "hands/nerve/hands/tools/function.py",
        'if result.stated == "success" else',
        'if result.stated == "success" and result.placeholder is None else',
    ),
    _s(
        "checkpoints-do-not-name-the-one-before",
        "rule:23",
        "brain/nerve/brain/state/checkpoint.py",
        "    for part in (previous.encode(), entries, state):",
        '    for part in (b"", entries, state):',
    ),
    _s(
        "any-file-will-do",
        "rule:25",
        COMMITTER,
        "        if sqlite.file_identity(self._path) == self._identity:",
        "        if sqlite.file_identity(self._path) != ():",
    ),
)
