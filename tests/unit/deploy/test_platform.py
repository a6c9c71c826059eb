"""Where nerve does not run, it says so in one sentence."""

import ast
import sys
from pathlib import Path

import pytest

from nerve.common import place
from nerve.deploy import cli
from nerve.protocol.errors import BadInput


@pytest.mark.parametrize("version", [(3, 8), (3, 10)])
def test_an_old_python_is_named_with_what_is_needed(version: tuple[int, int]) -> None:
    said = cli.unsupported(version, "linux")
    assert f"{version[0]}.{version[1]}" in said
    assert "3.11" in said


def test_windows_is_named_with_the_way_out() -> None:
    assert "WSL" in cli.unsupported((3, 12), "win32")
    for platform in ("linux", "darwin"):
        assert cli.unsupported((3, 11), platform) == ""


def test_an_unsupported_platform_exits_as_usage_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_entry_point_reads_as_an_old_python() -> None:
    for module in (cli.__file__, str(Path(cli.__file__).parent / "__init__.py")):
        ast.parse(Path(module).read_text(), feature_version=(3, 6))


def test_a_network_file_system_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def network(path: Path) -> str:
        return "nfs4"

    monkeypatch.setattr(place, "_file_system", network)
    with pytest.raises(BadInput, match=r"network file system \(nfs4\).*local disk"):
        place.StateDirectory.open(tmp_path / "state", create=True)
