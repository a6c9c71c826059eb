"""What the demo says while it runs: lines of time, speaker and sentence, or JSON lines."""

import textwrap
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, final

from rich.console import Console
from rich.text import Text

from nerve.common.clock import Clock
from nerve.deploy.output import as_json, shown

WIDTH_MAX = 100
WIDTH_MIN = 60


class Tone(StrEnum):
    """How a line is meant; the style is only a colour."""

    PLAIN = ""
    DIM = "dim"
    ACT = "bold"
    KILL = "bold red"
    DOUBT = "yellow"
    GOOD = "green"
    BAD = "red"


@final
class Voice:
    """Speaks on standard output; with `json_lines` in one JSON object a line."""

    def __init__(self, clock: Clock, *, json_lines: bool) -> None:
        self.began = clock.now_ms()
        self._clock = clock
        self._json = json_lines
        console = Console(highlight=False, markup=False, emoji=False)
        self._console = Console(
            highlight=False,
            markup=False,
            emoji=False,
            width=max(WIDTH_MIN, min(console.width, WIDTH_MAX)),
        )

    def act(self, number: int, title: str) -> None:
        """A new chapter."""
        if self._json:
            self._print_json("act", number=number, title=title)
            return
        self._print(Text())
        self._print(Text(f"{number}. {title}", style=Tone.ACT))

    def say(
        self, who: str, text: str, tone: Tone = Tone.PLAIN, *, event: str = "said", **fields: Any
    ) -> None:
        """Something happened just now."""
        if self._json:
            self._print_json(event, who=who, text=text, **fields)
            return
        seconds = (self._clock.now_ms() - self.began) / 1000
        head = f"{seconds:6.2f}s  {who:<6}  "
        lines = textwrap.wrap(
            shown(text), self._console.width - len(head) - 1, break_on_hyphens=False
        )
        for number, line in enumerate(lines or [""]):
            row = Text()
            row.append(head[:-8] if number == 0 else " " * len(head[:-8]), style=Tone.DIM)
            row.append(head[-8:] if number == 0 else " " * 8, style=tone or Tone.ACT)
            self._print(row.append(line, style=tone))

    def paragraph(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        """Text of any length, for people only."""
        for line in text.splitlines():
            room = self._console.width - 5
            first, *rest = textwrap.wrap(shown(line), room, break_on_hyphens=False) or [""]
            self.block([f"  {first}", *(f"    {each}" for each in rest)], tone)

    def block(self, lines: Sequence[str], tone: Tone = Tone.PLAIN) -> None:
        """Lines as they are, for people only."""
        if not self._json:
            for line in lines:
                self._print(Text(shown(line), style=tone))

    def answer(self, value: Mapping[str, Any]) -> None:
        """The whole outcome, for programs only."""
        if self._json:
            self._print(as_json(value))

    def _print_json(self, event: str, /, **fields: Any) -> None:
        at = self._clock.now_ms() - self.began
        self._print(as_json({"event": event, "at_ms": at, **fields}))

    def _print(self, line: Text | str) -> None:
        try:
            if isinstance(line, Text):
                self._console.print(line, soft_wrap=True)
            else:
                print(line, flush=True)
        except OSError as error:
            # A terminal that was closed says it otherwise than a pipe.
            raise BrokenPipeError(str(error)) from None
