"""Which object storage an address names: a local folder or an S3 bucket; nothing secret stays here.

`""`, `/folder` or `file:///folder` is a folder, `s3://bucket/prefix` a bucket. Credentials, region
and endpoint of a bucket come from the environment alone (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL).
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlsplit

import platformdirs
from obstore.exceptions import PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore, S3Store

from workbench.settings.addresses import secret_part
from workbench.spatial.hierarchy.addresses import is_loopback
from workbench.spatial.hierarchy.medium import MediumFault
from workbench.spatial.hierarchy.object_folder import is_own, show_folder

SUBFOLDER = "kv-workbench-objects"
_ADDRESS = re.compile(r"https?://[^\s)\"']+")
_STATUS = re.compile(r"status code: (\d{3})")
_REASONS = {"401": "unauthorised", "403": "unauthorised", "416": "truncated", "507": "disk_full"}
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_OTHER_CREDENTIALS = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_METADATA_ENDPOINT",
    "AWS_SKIP_SIGNATURE",
)


@dataclass(frozen=True)
class OpenedStore:
    """A client of the storage, the prefix of our objects, its name for people, and where it lies.

    `folder` is empty for a bucket, `bucket` for a folder; `endpoint` is empty for Amazon's.
    """

    store: LocalStore | S3Store = field(repr=False)
    prefix: str
    place: str
    folder: str = ""
    bucket: str = ""
    endpoint: str = ""


def open_store(address: str, environment: Mapping[str, str] = os.environ) -> OpenedStore:
    """The storage that an address names; MediumFault with one sentence if it cannot be.

    Nothing is sent to a bucket yet. A folder is created with mode 0700, or has to be ours.
    """
    if not address:
        address = str(platformdirs.user_cache_path("kv-workbench"))
    if part := secret_part(address):
        raise MediumFault(
            "address",
            f"the address of object storage may not hold a {part}: "
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead",
        )
    if address.startswith("s3://"):
        return _open_bucket(address, environment)
    path = address.removeprefix("file://")
    if "://" in path or not os.path.isabs(path):
        raise MediumFault(
            "address", "object storage: give /folder, file:///folder or s3://bucket/prefix"
        )
    return _open_folder(path)


def _open_folder(path: str) -> OpenedStore:
    folder = os.path.join(path, SUBFOLDER)
    try:
        os.makedirs(path, exist_ok=True)
        if is_own(folder):
            show_folder(folder)
        if not os.path.lexists(folder):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
    except OSError as error:
        raise MediumFault(
            "address", f"object storage cannot use the folder {folder} ({error.strerror})"
        ) from None
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not mine or found.st_mode & 0o022:
        raise MediumFault(
            "address", f"object storage needs {folder} to be a folder that only you may write to"
        )
    return OpenedStore(LocalStore(folder), "", f"file://{folder}", folder)


def _open_bucket(address: str, environment: Mapping[str, str]) -> OpenedStore:
    bucket, _, path = address.removeprefix("s3://").partition("/")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{2,62}", bucket):
        raise MediumFault(
            "address", "object storage: give s3://bucket/prefix with a bucket's name as S3 has it"
        )
    endpoint = next((environment[name] for name in _ENDPOINTS if environment.get(name)), "")
    named = _check_endpoint(endpoint) if endpoint else ""
    keys = environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY")
    if not keys and not any(environment.get(name) for name in _OTHER_CREDENTIALS):
        raise MediumFault(
            "unauthorised",
            f"object storage s3://{bucket} needs credentials: "
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment",
        )
    store = S3Store(
        bucket,
        client_options={
            "allow_http": named.startswith("http://"),
            "connect_timeout": timedelta(seconds=2),
            "timeout": timedelta(seconds=10),
        },
        retry_config={
            "max_retries": 2,
            "retry_timeout": timedelta(seconds=10),
            "backoff": {
                "init_backoff": timedelta(milliseconds=50),
                "max_backoff": timedelta(milliseconds=500),
            },
        },
    )
    prefix = path.strip("/")
    place = f"s3://{bucket}/{prefix}".rstrip("/") + (f" at {named}" if named else "")
    prefix = prefix + "/" if prefix else ""
    return OpenedStore(store, prefix, place, "", bucket, named)


def _check_endpoint(endpoint: str) -> str:
    """Scheme, host and port of an endpoint; plain HTTP is for this machine alone."""
    if part := secret_part(endpoint):
        raise MediumFault("address", f"the endpoint in AWS_ENDPOINT_URL may not hold a {part}")
    try:
        parts = urlsplit(endpoint)
        secure = parts.scheme == "https" and bool(parts.hostname)
        fine = secure or (parts.scheme == "http" and is_loopback(parts.hostname))
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        fine = False
    if not fine:
        raise MediumFault(
            "address",
            "the endpoint in AWS_ENDPOINT_URL has to be https://host:port "
            "(http:// is for this machine alone)",
        )
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{port}"


def fault_reason(error: Exception) -> str:
    """The word a fault is counted under; an error's own text may hold addresses, so it stays."""
    if isinstance(error, MediumFault):
        return error.reason
    if isinstance(error, FileNotFoundError):
        return "gone"
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        return "unauthorised"
    text = _ADDRESS.sub("", str(error))  # a port may hold any digits, and a name any word
    answered = _STATUS.search(text)
    if answered and answered[1] in _REASONS:  # listing tells it in no other way
        return _REASONS[answered[1]]
    if any(word in text for word in ("InvalidRange", "range was invalid")):
        return "truncated"
    if "No space left" in text or "quota" in text.lower():
        return "disk_full"
    if "NoSuchBucket" in text:
        return "gone"
    if any(word in text for word in ("error sending request", "Connect", "TimedOut", "timed out")):
        return "unreachable"
    return "io_error"
