"""Writes a password of its own for every user of the compose file, once, each where only its owner looks.

The folders below /secrets are volumes, of which a service mounts only its own. What stands there already
stays, so that a second start finds the same passwords, and an operator may bring others.
"""

import base64
import hashlib
import json
import secrets
from pathlib import Path
from urllib.parse import quote

ROOT = Path("/secrets")
BUCKET = "nerve"


def main() -> None:
    passwords = _passwords()
    keys = {name: passwords[name] for name in ("superuser", "owner", "brain", "hands")}
    for name, password in keys.items():
        _write("ledgers", name, password)
    _write("broker", "definitions.json", _definitions(passwords))
    _write("broker", "rabbitmq.conf", "load_definitions = /run/secrets/definitions.json\n")
    _write("objects", "user", "nerve")
    _write("objects", "password", passwords["objects"])
    _write("objects", "s3proxy.conf", _s3proxy(passwords["objects"]))
    for side in ("brain", "hands"):
        _write(side, "database", _database("nerve_" + side, passwords[side], side))
        broker = f"amqp://{side}:{quote(passwords['broker-' + side])}@broker:5672/nerve?create=true"
        _write(side, "broker", broker)
        _write(side, "objects", _aws(passwords["objects"]))
    for ledger in ("brain", "hands"):
        _write("owner", ledger, _database("nerve_owner", passwords["owner"], ledger))
    _write("owner", "objects", _aws(passwords["objects"]))


def _passwords() -> dict[str, str]:
    """All of them, kept in a folder that no other service mounts."""
    kept = ROOT / "all" / "passwords.json"
    if kept.exists():
        found: dict[str, str] = json.loads(kept.read_text())
        return found
    names = ("superuser", "owner", "brain", "hands", "broker-brain", "broker-hands", "objects")
    made = {name: secrets.token_urlsafe(24) for name in names}
    kept.write_text(json.dumps(made))
    kept.chmod(0o400)
    return made


def _database(user: str, password: str, name: str) -> str:
    return f"postgresql://{user}:{quote(password)}@ledgers:5432/{name}"


def _definitions(passwords: dict[str, str]) -> str:
    """RabbitMQ's users by the hashes of their passwords, with their rights in one virtual host."""
    sides = ("brain", "hands")
    rights = {"vhost": "nerve", "configure": ".*", "write": ".*", "read": ".*"}
    return json.dumps(
        {
            "vhosts": [{"name": "nerve"}],
            "users": [
                {
                    "name": side,
                    "password_hash": _hash(passwords[f"broker-{side}"]),
                    "hashing_algorithm": "rabbit_password_hashing_sha256",
                    "tags": [],
                }
                for side in sides
            ],
            "permissions": [{"user": side, **rights} for side in sides],
        }
    )


def _hash(password: str) -> str:
    salt = secrets.token_bytes(4)
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def _s3proxy(password: str) -> str:
    return (
        "s3proxy.endpoint=http://0.0.0.0:9000\ns3proxy.authorization=aws-v2-or-v4\n"
        f"s3proxy.identity=nerve\ns3proxy.credential={password}\n"
        "jclouds.provider=filesystem\njclouds.filesystem.basedir=/data\n"
    )


def _aws(password: str) -> str:
    """As the AWS SDK reads it from AWS_SHARED_CREDENTIALS_FILE."""
    return f"[default]\naws_access_key_id = nerve\naws_secret_access_key = {password}\n"


def _write(folder: str, name: str, text: str) -> None:
    path = ROOT / folder / name
    if not path.exists():
        path.write_text(text)
        # The volume is the wall: whoever mounts it may read it, under whatever user it runs.
        path.chmod(0o444)


if __name__ == "__main__":
    main()
