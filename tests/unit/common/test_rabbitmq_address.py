"""What an address of RabbitMQ may say, and that its secrets are not shown."""

import pytest

from nerve.common.broker.rabbitmq_address import rabbitmq_at
from nerve.protocol.errors import BadInput


def test_an_address_names_place_options_and_no_more() -> None:
    found = rabbitmq_at(
        "amqps://ann:s%2Fcret@host/v%2Fh?ca_file=/ca.pem&heartbeat=3&create=true&management=15671",
        publish_seconds=7,
    )
    assert "amqps://ann:s%2Fcret@host/v%2Fh" == found.url
    assert ("/ca.pem", 3, True, 7.0) == (
        found.ca_file,
        found.heartbeat_seconds,
        found.create,
        found.publish_seconds,
    )
    assert ("ann", "v/h") == (found.user, found.virtual_host)
    assert "https://ann:s%2Fcret@host:15671" == found.management
    assert "amqps://host:5671/v%2Fh" == found.shown
    assert "cret" not in repr(found)


def test_what_is_left_out_is_what_is_safe() -> None:
    found = rabbitmq_at("amqp://host", publish_seconds=7)
    assert (False, 10, None, "guest", "/") == (
        found.create,
        found.heartbeat_seconds,
        found.management,
        found.user,
        found.virtual_host,
    )


@pytest.mark.parametrize(
    "url",
    [
        "amqp:///vhost",
        "amqp://host:port/",
        "amqp://host/?ca_file=/ca.pem",
        "amqp://host/?prefetch=9",
        "amqp://host/?create=perhaps",
        "amqp://host/?heartbeat=0",
        "amqp://host/?management=ftp://host",
    ],
)
def test_an_address_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="amqps"):
        rabbitmq_at(url, publish_seconds=7)
