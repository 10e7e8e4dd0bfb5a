"""API keys: who may do what, on which names (A §0.2, §12).

Keys are parsed once, before the first fork, and kept as SHA-256 digests. A presented token is hashed and compared with every digest,
in constant time and without an early exit, so neither which key nor how much of it matched shows in the time it takes.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from dataclasses import dataclass

from topicsd import limits
from topicsd.settings import SettingsError

SCOPES = frozenset({"read", "write", "delete", "admin"})
_WORDS = {word: {word} for word in SCOPES} | {word[0]: {word} for word in SCOPES} | {"rw": {"read", "write"}}


@dataclass(frozen=True, slots=True)
class Key:
    """Hold what one key may do; `index` numbers its in-flight counter."""

    index: int
    scopes: frozenset[str] = SCOPES
    prefixes: tuple[bytes, ...] = ()  # none: every name

    def may(self, *scopes: str) -> bool:
        """Tell whether the key has all these scopes."""
        return self.scopes.issuperset(scopes)

    def reaches(self, name: bytes) -> bool:
        """Tell whether the allowlist lets the key touch this name: a byte prefix of the raw name."""
        return not self.prefixes or name.startswith(self.prefixes)


ANYONE = Key(-1)  # without keys the header is ignored and everyone may do everything


class Keyring:
    """All configured keys, as digests."""

    def __init__(self, entries: list[tuple[bytes, Key]]) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> list[tuple[bytes, Key]]:
        """Return digest and key of each entry, for the native front."""
        return list(self._entries)

    @property
    def enabled(self) -> bool:
        """Tell whether there are keys at all."""
        return bool(self._entries)

    @classmethod
    def parse(cls, text: str) -> Keyring:
        """Read `key[:scopes[:prefixes]]` entries, separated by commas.

        An empty text is no keys. Raises SettingsError, which never quotes a secret, for an unknown scope, a blank entry, an empty key or
        prefix, a key that comes twice, too many keys: the server must not start with rights other than those meant. (A §0.2)
        """
        entries: list[tuple[bytes, Key]] = []
        seen: set[bytes] = set()
        for place, entry in enumerate((part.strip() for part in text.split(",")) if text else (), start=1):
            if not entry:
                raise SettingsError(f"TOPICS_API_KEYS: entry {place} is blank: a key is missing, or a comma is too many")
            secret, _, rest = entry.partition(":")
            scopes, _, prefixes = rest.partition(":")
            if not secret:
                raise SettingsError(f"TOPICS_API_KEYS: entry {place} has an empty key")
            digest = _digest(secret.encode())
            if digest in seen:
                raise SettingsError(f"TOPICS_API_KEYS: entry {place} repeats the key of another entry")
            seen.add(digest)
            entries.append((digest, Key(place - 1, _scopes(scopes, place), _prefixes(prefixes, place))))
        if len(entries) > limits.API_KEYS_MAX:
            raise SettingsError(f"TOPICS_API_KEYS: {len(entries)} keys, at most {limits.API_KEYS_MAX}")
        return cls(entries)

    def find(self, authorization: bytes | None) -> Key | None:
        """Return the key that a `Bearer …` header presents, or None."""
        scheme, _, token = (authorization or b"").strip().partition(b" ")
        presented = _digest(token.strip())
        found: Key | None = None
        for digest, key in self._entries:
            if hmac.compare_digest(digest, presented):
                found = key
        return found if scheme.lower() == b"bearer" else None


def check_exposure(host: str, keyring: Keyring, allow_insecure: bool) -> str | None:
    """Refuse a public address without keys; return a warning to log, if any.

    Raises SettingsError unless there are keys, the host is a loopback address or `allow_insecure` is set. (A §0.2)
    """
    if keyring.enabled:
        return None
    if is_loopback(host):
        return "no API keys are configured: whoever reaches the port may do everything"
    if allow_insecure:
        return f"no API keys are configured and {host} is no loopback address: the server is OPEN to the network"
    raise SettingsError(
        f"TOPICS_HOST={host} is no loopback address and TOPICS_API_KEYS is empty: anyone could read and write. "
        "Set keys, bind 127.0.0.1, or set TOPICS_ALLOW_INSECURE_NO_AUTH=1 on a trusted network"
    )


def is_loopback(host: str) -> bool:
    """Tell whether a host is surely reachable from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def _scopes(text: str, place: int) -> frozenset[str]:
    if not text:
        return SCOPES
    scopes: set[str] = set()
    for word in text.split("+"):
        if word not in _WORDS:
            raise SettingsError(f"TOPICS_API_KEYS: entry {place}: no such scope: {word!r}; there are read, write, delete, admin, r, w, d, a, rw")
        scopes |= _WORDS[word]
    return frozenset(scopes)


def _prefixes(text: str, place: int) -> tuple[bytes, ...]:
    if not text:
        return ()
    prefixes = text.split("|")
    if "" in prefixes:
        raise SettingsError(f"TOPICS_API_KEYS: entry {place} has an empty prefix, which would allow every name")
    return tuple(sorted(prefix.encode() for prefix in prefixes))
