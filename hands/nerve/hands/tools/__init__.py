"""Ways to run a tool: today the typed Python functions of a catalog."""

from nerve.hands.tools.function import FunctionTools

__all__ = ["FunctionTools"]
