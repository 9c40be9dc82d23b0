"""Credentials in addresses, which messages, logs and the files of a run would show."""

import os
import re

from bertfam.errors import UserError

# PROTOCOL://NAME:PASSWORD@..., where a password may have slashes; a port has none but digits. The name alone may be a token of a
# web server.
_SECRET = re.compile(r"(\w[\w+.-]*://)(?:[^/@:]*:(?!\d*(?:/|$)).*@|(?<=https://)[^/@]*@|(?<=http://)[^/@]*@)(.*)", re.DOTALL)
# An address that is signed for a while, or has a key: PROTOCOL://HOST/PATH?X-Amz-Signature=...
_SIGNED = re.compile(
    r"(\w[\w+.-]*://[^?#]*)\?(?:[^#]*&)?([\w.-]*(?:token|sig|signature|key|secret|password|credential))=",
    re.IGNORECASE | re.DOTALL,
)
_PLACES = {
    "gs": "sign in with `gcloud auth application-default login`",
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them into ~/.aws/credentials",
    "http": "download the file first",
    "https": "download the file first",
}
_ELSEWHERE = "write the credentials into ~/.config/fsspec/conf.json"


def check_address(address: str | os.PathLike[str]) -> None:
    """Raise UserError, without the secret, for an address with a password, a key or a token of a web server in it."""
    text = os.fspath(address)
    if match := _SIGNED.match(text):
        place, name = match.groups()
        fix = _fix(place.partition("://")[0])
        raise UserError(f"{place}?{name}=***: an address with a key would stand in logs and files: leave it out, and {fix}")
    match = _SECRET.match(text)
    if match is None:
        return
    protocol, rest = match.groups()
    fix = _fix(protocol.removesuffix("://"))
    raise UserError(f"{protocol}***@{rest}: an address with a password would stand in logs and files: leave it out, and {fix}")


def _fix(protocol: str) -> str:
    return _PLACES.get(protocol.lower(), _ELSEWHERE)
