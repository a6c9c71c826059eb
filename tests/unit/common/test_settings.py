"""Settings: defaults, environment, overrides; a bad value is named with its variable."""

import dataclasses
from pathlib import Path

import pytest

from nerve.common import settings
from nerve.common.settings import Settings


def test_defaults_need_no_environment() -> None:
    assert Settings() == settings.load()


def test_the_environment_comes_before_defaults_and_overrides_before_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NERVE_LEASE_SECONDS", "45")
    monkeypatch.setenv("NERVE_HINTS", "off")
    monkeypatch.setenv("NERVE_HANDS_SLOTS", "3")
    loaded = settings.load(hands_slots=7)
    assert (45.0, False, 7) == (loaded.lease_seconds, loaded.hints, loaded.hands_slots)


@pytest.mark.parametrize(
    ("variable", "value"),
    [("NERVE_LEASE_SECONDS", "soon"), ("NERVE_HANDS_SLOTS", "0"), ("NERVE_SCAN_SECONDS", "-1")],
)
def test_a_bad_value_is_named_with_its_variable(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=f"{variable}='{value}'"):
        settings.load()


def test_a_heartbeat_as_long_as_the_lease_is_refused() -> None:
    with pytest.raises(ValueError, match="NERVE_HEARTBEAT_SECONDS=20 is too long"):
        settings.load(heartbeat_seconds=20.0)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="no setting 'lease'"):
        settings.load(lease=3)


def test_every_setting_is_described_with_its_variable() -> None:
    shown = list(settings.describe(settings.load(lease_seconds=60.0)))
    assert [field.name for field in dataclasses.fields(Settings)] == [one.name for one in shown]
    [lease] = [one for one in shown if one.variable == "NERVE_LEASE_SECONDS"]
    assert (60.0, 30.0) == (lease.value, lease.default)
    assert all(one.about for one in shown)


@pytest.mark.parametrize("name", settings.FROM_FILES)
def test_what_may_hold_a_secret_is_read_from_a_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "address"
    secret.write_text("kind://user:pass@host/\n")
    monkeypatch.setenv(f"NERVE_{name.upper()}_FILE", str(secret))
    assert "kind://user:pass@host/" == getattr(settings.load(), name)
    assert "kind://other/" == getattr(settings.load(**{name: "kind://other/"}), name)


def test_a_file_that_is_not_there_is_named_with_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NERVE_BROKER_FILE", str(tmp_path / "absent"))
    with pytest.raises(ValueError, match="NERVE_BROKER_FILE=.*: No such file"):
        settings.load()
