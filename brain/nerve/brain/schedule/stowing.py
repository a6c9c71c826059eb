"""Large arguments and checkpoints go into the object store before the transaction that refers to them."""

from collections.abc import Sequence
from dataclasses import replace

from nerve.brain.harness import ToolCall
from nerve.brain.ledger.claim import Claimed
from nerve.brain.ledger.step_unit import NewCheckpoint
from nerve.common.large import Large
from nerve.protocol.identity import ThreadKey, execution_id
from nerve.protocol.objects import Holds, ObjectRef, journal_scope


async def stow(
    large: Large | None, claimed: Claimed, calls: Sequence[ToolCall]
) -> dict[str, ObjectRef]:
    """Where the large arguments of `calls` stand now, by execution. Raises what the ledger raises."""
    if large is None:
        return {}
    thread = ThreadKey.parse(claimed.thread)
    found: dict[str, ObjectRef] = {}
    for number, call in enumerate(calls, claimed.calls + 1):
        execution = execution_id(claimed.turn, number)
        ref = await large.stow(
            dict(call.arguments),
            namespace=thread.namespace,
            session=thread.session,
            execution=execution,
            holds=Holds.ARGUMENTS,
        )
        if ref is not None:
            found[execution] = ref
    return found


async def lay_down(large: Large | None, thread: str, checkpoint: NewCheckpoint) -> NewCheckpoint:
    """`checkpoint`, as a reference where it is large. Raises what the ledger raises, and TooLarge."""
    if large is None:
        return checkpoint
    # Canonical JSON holds no raw newline: two lines are two values.
    lines = checkpoint.entries, checkpoint.state
    ref = await large.lay_down(lines, scope=journal_scope(thread), owner=thread)
    return checkpoint if ref is None else replace(checkpoint, ref=ref)
