"""Large arguments go into the object store before the transaction that commits what refers to them."""

from collections.abc import Sequence

from nerve.brain.harness import ToolCall
from nerve.brain.ledger.claim import Claimed
from nerve.common.large import Large
from nerve.protocol.identity import ThreadKey, execution_id
from nerve.protocol.objects import Holds, ObjectRef


async def stowed(
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
