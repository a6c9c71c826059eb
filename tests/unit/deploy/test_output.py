"""What is printed: JSON for programs, and text that cannot take over a terminal."""

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from unicodedata import category

from hypothesis import given
from hypothesis import strategies as st

from nerve.deploy.output import as_json, brief, error_line, mismatch_lines, shown
from nerve.protocol.content import Message


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Thing:
    colour: Colour
    path: Path
    message: Message


def test_values_of_ours_become_plain_json() -> None:
    thing = Thing(Colour.RED, Path("/x"), Message.assistant("hi"))
    assert json.loads(as_json({"things": (thing,)})) == {
        "things": [
            {
                "colour": "red",
                "path": "/x",
                "message": {"role": "assistant", "parts": [{"type": "text", "text": "hi"}]},
            }
        ]
    }


@given(st.text())
def test_no_text_carries_control_codes_to_a_terminal(text: str) -> None:
    assert not [
        letter for letter in shown(text) if category(letter) == "Cc" and letter not in "\n\t"
    ]
    assert "\x1b" not in shown(text)


def test_a_brief_text_is_one_bounded_line() -> None:
    assert brief("a\nb  c") == "a b c"
    assert len(brief("x" * 1000)) == 160


def test_an_error_is_one_line_for_people_and_one_object_for_programs() -> None:
    assert error_line("c", "It broke", "Mend it", as_json=False) == "nerve: It broke. Mend it."
    found = json.loads(error_line("c", "It broke", "Mend it", as_json=True))
    assert found == {"error": {"code": "c", "message": "It broke", "next_step": "Mend it"}}


def test_a_mismatch_shows_what_changed_added_and_went() -> None:
    details = {
        "old": {"same": {"a": 1, "b": 2}, "gone": {"a": 1}},
        "new": {"same": {"a": 1, "b": 3}, "come": {"a": 1}},
        "turns": ["t1"],
    }
    assert mismatch_lines(details) == [
        "  come: added",
        "  gone: removed",
        "  same.b old: 2",
        "  same.b new: 3",
        "  held by: t1",
    ]
