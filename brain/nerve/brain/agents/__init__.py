"""Agent kernels behind the harness port, and the models that they ask."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nerve.brain.agents.function import Context, FunctionAgent, function_agent
    from nerve.brain.agents.http import HttpModel
    from nerve.brain.agents.models import Model, ModelAnswer, ModelCall, ModelError, ModelRequest
    from nerve.brain.agents.openai import OpenAIModel
    from nerve.brain.agents.react import ReactAgent
    from nerve.brain.agents.scripted import ScriptedModel

__all__ = [
    "Context",
    "FunctionAgent",
    "HttpModel",
    "Model",
    "ModelAnswer",
    "ModelCall",
    "ModelError",
    "ModelRequest",
    "OpenAIModel",
    "ReactAgent",
    "ScriptedModel",
    "function_agent",
]

_HOMES = {
    "Context": "function",
    "FunctionAgent": "function",
    "HttpModel": "http",
    "Model": "models",
    "ModelAnswer": "models",
    "ModelCall": "models",
    "ModelError": "models",
    "ModelRequest": "models",
    "OpenAIModel": "openai",
    "ReactAgent": "react",
    "ScriptedModel": "scripted",
    "function_agent": "function",
}


def __getattr__(name: str) -> Any:
    # Each on its first use: a scripted server needs no pydantic, a Brain without HTTP no ssl.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
