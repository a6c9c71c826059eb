"""The order in which tests look for a real service, and what happens where there is none."""

import pytest

from support.services import Service, Unavailable


def absent() -> str:
    raise Unavailable("no such program")


def native() -> str:
    return "native"


def container() -> str:
    return "container"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NERVE_TEST_X", raising=False)
    monkeypatch.delenv("NERVE_REQUIRE", raising=False)


def test_an_address_from_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NERVE_TEST_X", "given")
    service = Service(name="x", variable="NERVE_TEST_X", native=[native], container=[container])
    assert service.address() == "given"


def test_a_server_of_the_machine_comes_before_a_container() -> None:
    service = Service(name="x", variable="NERVE_TEST_X", native=[native], container=[container])
    assert service.address() == "native"


def test_a_container_comes_where_no_server_is() -> None:
    service = Service(name="x", variable="NERVE_TEST_X", native=[absent], container=[container])
    assert service.address() == "container"


def test_a_missing_service_skips_and_says_why() -> None:
    service = Service(name="x", variable="NERVE_TEST_X", native=[absent])
    with pytest.raises(pytest.skip.Exception, match="no x here: .*no such program"):
        service.address()


@pytest.mark.parametrize("asked", ["x", "y, x", "all"])
def test_a_missing_service_that_is_required_fails(
    monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setenv("NERVE_REQUIRE", asked)
    with pytest.raises(pytest.fail.Exception, match="NERVE_REQUIRE asks for it"):
        Service(name="x", variable="NERVE_TEST_X").address()
