"""For users' own tests: try an agent in memory, with hosts that die where it hurts."""

from nerve.brain.testing.conductor import Conductor, Ended, RunningTurn, new_turn
from nerve.brain.testing.hands import RehearsalHands
from nerve.brain.testing.memory_host import ContractBroken, Crash, MemoryHost
from nerve.brain.testing.rehearsal import rehearse, rehearse_crashes

__all__ = [
    "Conductor",
    "ContractBroken",
    "Crash",
    "Ended",
    "MemoryHost",
    "RehearsalHands",
    "RunningTurn",
    "new_turn",
    "rehearse",
    "rehearse_crashes",
]
