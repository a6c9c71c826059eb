"""What crosses the wall between Brain and Hands: values and schemas, no I/O."""

from nerve.protocol.binding import Powers, ToolBinding
from nerve.protocol.catalog import Catalog
from nerve.protocol.content import (
    AudioPart,
    ImagePart,
    Message,
    Role,
    StructuredPart,
    TextPart,
    VideoPart,
    as_content,
)
from nerve.protocol.errors import NerveError, ToolFailed
from nerve.protocol.execution import Effect, ExecutionResult, ExecutionState
from nerve.protocol.executor import Executor, ExecutorCapabilities, UpdateSink
from nerve.protocol.identity import Origin, SessionKey, ThreadKey
from nerve.protocol.signature import ToolContext

__all__ = [
    "AudioPart",
    "Catalog",
    "Effect",
    "ExecutionResult",
    "ExecutionState",
    "Executor",
    "ExecutorCapabilities",
    "ImagePart",
    "Message",
    "NerveError",
    "Origin",
    "Powers",
    "Role",
    "SessionKey",
    "StructuredPart",
    "TextPart",
    "ThreadKey",
    "ToolBinding",
    "ToolContext",
    "ToolFailed",
    "UpdateSink",
    "VideoPart",
    "as_content",
]
