"""The migration job of the compose file: makes or upgrades the ledgers as their owner, and the bucket."""

import os
import subprocess
import sys
from importlib import import_module
from typing import Any

BUCKET = "nerve"


def main() -> int:
    migrate("brain", "brain", "")
    for pool in os.environ["POOLS"].split(","):
        migrate("hands", "hands", pool)
    make_bucket(os.environ["OBJECTS_ENDPOINT"])
    return 0


def migrate(room: str, ledger: str, schema: str) -> None:
    """Its own process: settings are read from the environment, once."""
    environment = {
        **os.environ,
        "NERVE_DATABASE_FILE": f"/run/secrets/{ledger}",
        "NERVE_DATABASE_SCHEMA": schema,
    }
    subprocess.run(["nerve", "migrate", "up", "--room", room], env=environment, check=True)


def make_bucket(endpoint: str) -> None:
    sdk: Any = import_module("boto3")
    errors: Any = import_module("botocore.exceptions")
    client = sdk.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    try:
        client.create_bucket(Bucket=BUCKET)
    except errors.ClientError as error:
        if error.response["Error"]["Code"] not in (
            "BucketAlreadyOwnedByYou",
            "BucketAlreadyExists",
        ):
            raise


if __name__ == "__main__":
    sys.exit(main())
