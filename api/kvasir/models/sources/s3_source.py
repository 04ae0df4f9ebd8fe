"""s3://BUCKET[/PREFIX]: Amazon S3 and what speaks its protocol (AWS_ENDPOINT_URL)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from kvasir.model_uri import ModelURI
from kvasir.models.download_errors import DownloadError, PermanentError
from kvasir.models.sources.source import (
    Digest,
    Listing,
    RemoteFile,
    Selection,
    is_archive,
    safe_path,
)

_CHUNK_BYTES = 1 << 18
_MAX_OBJECTS = 10_000
_CREDENTIALS = (
    "give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of an account that may read it (on a cluster:"
    " in the Secret that spec.model.secretRef names), or a role"
)
_REFUSED = ("403", "401", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch")
_ABSENT = ("404", "NoSuchBucket", "NoSuchKey")
_CHANGED = ("412", "PreconditionFailed", "416", "InvalidRange")


class S3Source:
    """The objects under one prefix. Credentials, region and endpoint are boto3's; without any
    credentials requests are not signed, as public buckets want it."""

    def __init__(self, uri: ModelURI, selection: Selection) -> None:
        self._uri = uri
        self._bucket, _, prefix = uri.name.partition("/")
        self._key = prefix.rstrip("/")
        self._archive = is_archive(self._key)
        self._prefix = self._key if self._archive or not self._key else f"{self._key}/"
        self._selection = selection
        session = boto3.session.Session()
        signed = session.get_credentials() is not None
        config = Config(
            signature_version=None if signed else UNSIGNED,
            connect_timeout=15,
            read_timeout=60,
            max_pool_connections=64,
            retries={"mode": "standard", "max_attempts": 3},
        )
        self._client: Any = session.client(
            "s3", config=config, region_name=session.region_name or "us-east-1"
        )

    def close(self) -> None:
        """See ModelSource."""
        self._client.close()

    def list(self) -> Listing:
        """The wanted objects directly under the prefix, or the archive that it names."""
        with self._explained(str(self._uri)):
            objects = list(self._objects())
        found = [file for each in objects if (file := self._file(each)) is not None]
        if not objects:
            raise PermanentError(
                f"{self._uri} names no objects; check the bucket and the prefix of the model's URI"
            )
        return Listing(tuple(found))

    def _objects(self) -> Iterator[dict[str, Any]]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix
        )
        seen = 0
        for page in pages:
            for each in page.get("Contents", ()):
                if seen == _MAX_OBJECTS:
                    raise PermanentError(
                        f"{self._uri} holds more than {_MAX_OBJECTS} objects; name the model's own"
                        " prefix"
                    )
                seen += 1
                yield each

    def _file(self, listed: dict[str, Any]) -> RemoteFile | None:
        key, size, etag = listed["Key"], listed["Size"], listed["ETag"]
        path = key.rpartition("/")[2] if self._archive else key[len(self._prefix) :]
        if key != self._key if self._archive else not self._selection.takes(path):
            return None
        digest = self._digest(key, etag.strip('"'))
        return RemoteFile(safe_path(path), size, key, digest, etag, self._archive)

    def _digest(self, key: str, etag: str) -> Digest | None:
        """An ETag is the MD5 of the content, or of the parts' MD5s, unless S3 encrypts with a key
        of the customer."""
        with self._explained(f"s3://{self._bucket}/{key}"):
            head = self._client.head_object(Bucket=self._bucket, Key=key, PartNumber=1)
        if head.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in head:
            return None
        if "-" not in etag:
            return Digest("md5", etag)
        return Digest("md5-parts", etag, head["ContentLength"])

    @contextmanager
    def read(self, file: RemoteFile, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Read the object's bytes, while it is the one that was listed."""
        what = f"s3://{self._bucket}/{file.address}"
        with self._explained(what):
            asked = {"Range": f"bytes={start}-"} if start else {}
            answer = self._client.get_object(
                Bucket=self._bucket, Key=file.address, IfMatch=file.version, **asked
            )
            # Not the body's own context manager: it gives another object.
            with closing(answer["Body"]) as body:
                yield start, body.iter_chunks(_CHUNK_BYTES)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        where = self._client.meta.endpoint_url
        try:
            yield
        except NoCredentialsError as error:
            raise PermanentError(f"{what} needs credentials: {_CREDENTIALS}") from error
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in _ABSENT:
                raise PermanentError(
                    f"{what} does not exist at {where}; check the model's URI"
                ) from error
            if code in _REFUSED:
                raise PermanentError(
                    f"{what} is refused by {where} ({code}): {_CREDENTIALS}"
                ) from error
            if code in _CHANGED:
                raise DownloadError(f"{what} was changed during the download") from error
            raise DownloadError(f"{what} cannot be read from {where}: {error}") from error
        except BotoCoreError as error:
            raise DownloadError(f"{what} cannot be read from {where}: {error}") from error
