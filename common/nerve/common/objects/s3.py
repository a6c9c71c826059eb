"""Objects in a bucket of any S3-compatible server, by boto3 in a bounded thread pool.

A key names its scope and digest, so that the same bytes always meet the same key: a conditional put
where the server knows it, a plain one where it does not, and both harmless when repeated. Nothing that
was read is believed before its size and digest were compared.
"""

import asyncio
import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar, final
from urllib.parse import parse_qs, quote, urlsplit

from nerve.common import faults
from nerve.common.clock import Clock, SystemClock
from nerve.common.logs import register_secret
from nerve.common.objects.port import OBJECT_BYTES_MAX, reference
from nerve.protocol.canonical import digest
from nerve.protocol.errors import BadInput, Damaged, NerveError, NotFound, TooLarge, Unavailable
from nerve.protocol.objects import ObjectRef

V = TypeVar("V")

_MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
_EXISTS = frozenset({"412", "PreconditionFailed"})
_AGAIN = frozenset({"409", "ConditionalRequestConflict"})
_FINAL = frozenset(
    {
        "403",
        "AccessDenied",
        "AuthorizationHeaderMalformed",
        "InvalidAccessKeyId",
        "NoSuchBucket",
        "PermanentRedirect",
        "SignatureDoesNotMatch",
        "NoCredentialsError",
        "PartialCredentialsError",
    }
)
"""What no waiting mends at a start; a host that runs goes on asking, since keys may come back."""
_NO_CONDITION = frozenset({"501", "NotImplemented", "400", "InvalidArgument", "InvalidRequest"})
PUT_TRIES = 4
VERIFIED_BYTES_MAX = 1024 * 1024

faults.register(
    "common",
    ["common.objects.s3.before_put", "common.objects.s3.after_put", "common.objects.s3.before_get"],
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """Where the objects are. Without a key the usual AWS places are asked for credentials.

    `stale_seconds`: how long a missing object is asked for again, since some servers answer so right
    after a put. `checksums`: "when_required" suits servers that refuse unknown trailers.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str = "us-east-1"
    key: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    path_style: bool = True
    checksums: str = "when_supported"
    ca_file: str | None = None
    connect_seconds: float = 3.0
    read_seconds: float = 30.0
    stale_seconds: float = 4.0
    threads: int = 8

    @property
    def shown(self) -> str:
        """The address without its secrets."""
        return f"s3://{self.bucket}/{self.prefix} at {self.endpoint or 'AWS'}"

    @classmethod
    def parse(cls, url: str, *, key: str | None = None, secret: str | None = None) -> "S3Settings":
        """`s3://bucket/prefix?endpoint=http://host:9000&region=...&path_style=true`.

        Raises BadInput where it names no bucket or an option that there is not.
        """
        parts = urlsplit(url)
        options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        known = {"endpoint", "region", "path_style", "checksums", "ca_file"}
        unknown = sorted(options.keys() - known)
        if parts.scheme != "s3" or not parts.netloc or unknown:
            raise BadInput(
                f"{parts.scheme}://{parts.netloc}{parts.path} is no address of objects"
                + (f": there is no option {unknown[0]!r}" if unknown else ""),
                where="--objects",
                next_step="write s3://bucket/prefix?endpoint=http://host:9000",
            )
        return cls(
            bucket=parts.netloc,
            prefix=parts.path.strip("/"),
            endpoint=options.get("endpoint"),
            region=options.get("region", "us-east-1"),
            path_style=options.get("path_style", "true") != "false",
            checksums=options.get("checksums", "when_supported"),
            ca_file=options.get("ca_file"),
            key=key,
            secret=secret,
        )


@final
class S3Objects:
    def __init__(
        self,
        settings: S3Settings,
        *,
        bytes_max: int = OBJECT_BYTES_MAX,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._bytes_max = bytes_max
        self._clock = clock or SystemClock()
        self._pool: ThreadPoolExecutor | None = None
        self._client: Any = None  # boto3 makes its clients at run time
        self._conditional = True
        if settings.secret:
            register_secret(settings.secret)

    @property
    def shown(self) -> str:
        return self._settings.shown

    async def open(self) -> None:
        """Make the client; nothing is asked of the server yet."""
        self._pool = ThreadPoolExecutor(self._settings.threads, thread_name_prefix="nerve-s3")
        self._client = await self._run(self._connect)

    async def put(self, scope: str, body: bytes) -> ObjectRef:
        ref = reference(scope, body)
        if len(body) > self._bytes_max:
            raise TooLarge(
                f"an object of {len(body):,} bytes is over the limit of {self._bytes_max:,}",
                where=scope,
                next_step="Split it, or raise NERVE_OBJECT_BYTES_MAX",
            )
        await faults.apoint("common.objects.s3.before_put")
        await self._run(lambda: self._put(ref, body))
        await faults.apoint("common.objects.s3.after_put")
        return ref

    async def get(self, ref: ObjectRef, *, patient: bool = True) -> bytes:
        await faults.apoint("common.objects.s3.before_get")
        began = self._clock.monotonic()
        while True:
            try:
                return await self._run(lambda: self._get(ref))
            except NotFound:
                waited = self._clock.monotonic() - began
                if not patient or waited >= self._settings.stale_seconds:
                    raise
            await self._clock.sleep(0.25)

    async def exists(self, ref: ObjectRef) -> bool:
        return await self._run(lambda: self._size(ref)) == ref.bytes

    async def delete(self, ref: ObjectRef) -> None:
        await self._run(
            lambda: self._client.delete_object(Bucket=self._settings.bucket, Key=self._key(ref))
        )

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)
        client, self._client = self._client, None
        if client is not None:
            client.close()

    async def _run(self, call: Callable[[], V]) -> V:
        if self._pool is None:
            raise self._unavailable("it is not open")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._translating, call)

    def _connect(self) -> Any:
        settings = self._settings
        return _sdk("boto3").client(
            "s3",
            endpoint_url=settings.endpoint,
            region_name=settings.region,
            aws_access_key_id=settings.key,
            aws_secret_access_key=settings.secret,
            verify=settings.ca_file,
            config=_sdk("botocore.config").Config(
                connect_timeout=settings.connect_seconds,
                read_timeout=settings.read_seconds,
                retries={"mode": "standard", "max_attempts": 3},
                max_pool_connections=settings.threads,
                request_checksum_calculation=settings.checksums,
                response_checksum_validation=settings.checksums,
                s3={"addressing_style": "path" if settings.path_style else "virtual"},
            ),
        )

    def _translating(self, call: Callable[[], V]) -> V:
        errors = _sdk("botocore.exceptions")
        try:
            return call()
        except errors.ClientError as error:
            raise self._unavailable(_code(error)) from error
        except (errors.BotoCoreError, OSError) as error:
            raise self._unavailable(type(error).__name__) from error

    def _put(self, ref: ObjectRef, body: bytes) -> None:
        for _ in range(PUT_TRIES):
            code = self._try_put(ref, body)
            if code is None:
                return
            if code in _EXISTS:
                if not self._stands(ref):
                    # Other bytes under a digest's name are damage, and these are the right ones.
                    self._write(ref, body, {})
                return
            if code in _NO_CONDITION and self._conditional:
                self._conditional = False
            elif code not in _AGAIN:
                raise self._unavailable(code)
        raise self._unavailable("409 again and again")

    def _stands(self, ref: ObjectRef) -> bool:
        """Whether the object that is there is the right one; large ones are judged by their size."""
        if ref.bytes > VERIFIED_BYTES_MAX:
            return self._size(ref) == ref.bytes
        try:
            self._get(ref)
            return True
        except (Damaged, NotFound):
            return False

    def _try_put(self, ref: ObjectRef, body: bytes) -> str | None:
        errors = _sdk("botocore.exceptions")
        try:
            self._write(ref, body, {"IfNoneMatch": "*"} if self._conditional else {})
            return None
        except errors.ClientError as error:
            return _code(error)

    def _write(self, ref: ObjectRef, body: bytes, condition: dict[str, str]) -> None:
        checksum = {}
        if self._settings.checksums == "when_supported":
            raw = bytes.fromhex(ref.digest.removeprefix("sha256:"))
            checksum = {"ChecksumSHA256": base64.b64encode(raw).decode()}
        self._client.put_object(
            Bucket=self._settings.bucket, Key=self._key(ref), Body=body, **condition, **checksum
        )

    def _get(self, ref: ObjectRef) -> bytes:
        errors = _sdk("botocore.exceptions")
        try:
            answer = self._client.get_object(Bucket=self._settings.bucket, Key=self._key(ref))
        except errors.ClientError as error:
            if _code(error) in _MISSING:
                raise self._missing(ref) from error
            raise
        if answer["ContentLength"] != ref.bytes:
            answer["Body"].close()
            raise self._damaged(ref, f"has {answer['ContentLength']} bytes")
        body: bytes = answer["Body"].read(ref.bytes + 1)
        if len(body) != ref.bytes or digest(body) != ref.digest:
            raise self._damaged(ref, "has other bytes")
        return body

    def _size(self, ref: ObjectRef) -> int | None:
        errors = _sdk("botocore.exceptions")
        try:
            answer = self._client.head_object(Bucket=self._settings.bucket, Key=self._key(ref))
        except errors.ClientError as error:
            if _code(error) in _MISSING:
                return None
            raise
        return int(answer["ContentLength"])

    def _key(self, ref: ObjectRef) -> str:
        scope = quote(ref.scope, safe="/@:+=")
        name = f"{scope}/{ref.digest.removeprefix('sha256:')}"
        return f"{self._settings.prefix}/{name}" if self._settings.prefix else name

    def _missing(self, ref: ObjectRef) -> NotFound:
        return NotFound(
            f"there is no object {ref.digest} in {self._settings.shown}",
            where=ref.scope,
            next_step="both sides must use one store: `nerve doctor` shows their addresses",
        )

    def _damaged(self, ref: ObjectRef, how: str) -> Damaged:
        return Damaged(
            f"the object {ref.digest} in {self._settings.shown} does not have the content that its"
            f" name says: it {how}",
            where=ref.scope,
            next_step="restore it from a backup of the bucket",
        )

    def _unavailable(self, why: str) -> NerveError:
        return Unavailable(
            f"the objects in {self._settings.shown} are out of reach: {why}",
            where="--objects",
            next_step="check endpoint, bucket and credentials; it is tried again by itself",
            details={"code": why, "final": why in _FINAL},
        )


def _sdk(module: str) -> Any:
    """A module of boto3, which has no types and is loaded only where objects are in a bucket."""
    return import_module(module)


def _code(error: Any) -> str:  # botocore's ClientError, whose answer is an untyped dictionary
    return str(error.response.get("Error", {}).get("Code", "unknown"))
