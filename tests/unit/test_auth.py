"""Keys, scopes, prefixes (A §0.2)."""

from __future__ import annotations

import pytest

from topicsd.api.auth import Keyring, check_exposure, is_loopback
from topicsd.settings import SettingsError


def key_of(text: str, token: str = "k"):
    return Keyring.parse(text).find(f"Bearer {token}".encode())


def test_a_bare_key_may_do_everything_everywhere():
    key = key_of("k")
    assert key.may("read", "write", "delete", "admin") and key.reaches(b"anything")


@pytest.mark.parametrize(
    "scopes, expected",
    [
        ("read", "read"),
        ("r", "read"),
        ("w", "write"),
        ("rw", "read write"),
        ("d+a", "delete admin"),
        ("read+write+delete+admin", "read write delete admin"),
        ("", "read write delete admin"),
    ],
)
def test_scopes_are_words_letters_or_the_alias(scopes, expected):
    assert key_of(f"k:{scopes}").scopes == frozenset(expected.split())


def test_prefixes_may_hold_colons_and_empty_scopes_mean_all():
    key = key_of("k::tenant42:|shared.")
    assert key.may("admin")
    assert key.reaches(b"tenant42:jobs") and key.reaches(b"shared.x")
    assert not key.reaches(b"tenant4") and not key.reaches(b"Tenant42:jobs") and not key.reaches(b"other")


@pytest.mark.parametrize("text", ["k:reed", "good,k:read+write+root", "k:read+", "k:READ", ":read", "k::a||b", "k,k", "k: read", "k:read,k:write"])
def test_a_malformed_entry_is_refused_and_no_secret_is_quoted(text):
    with pytest.raises(SettingsError) as refused:
        Keyring.parse(text.replace("k", "sesame"))
    assert "sesame" not in str(refused.value)


def test_more_keys_than_counters_are_refused():
    with pytest.raises(SettingsError, match="1025"):
        Keyring.parse(",".join(f"key{n}" for n in range(1025)))


def test_blank_entries_are_refused_and_never_mean_that_there_are_no_keys():
    for text in (",", " ", " , ", "one,", ",one", "one,,two", "one, ,two"):
        with pytest.raises(SettingsError, match="blank"):
            Keyring.parse(text)
    assert not Keyring.parse("").enabled


def test_keys_are_numbered():
    keyring = Keyring.parse("one, two:read,three")
    assert [keyring.find(f"Bearer {word}".encode()).index for word in ("one", "two", "three")] == [0, 1, 2]


@pytest.mark.parametrize(
    "header", [None, b"", b"Bearer", b"Bearer ", b"Bearer wrong", b"Bearer kk", b"Basic k", b"k", b"Bearer k k", b"Bearer k,k2", b"Bearer \xff"]
)
def test_anything_but_a_configured_bearer_key_is_nobody(header):
    assert Keyring.parse("k,k2").find(header) is None


@pytest.mark.parametrize("header", [b"Bearer k", b"bearer k", b"BEARER  k", b" Bearer k "])
def test_the_scheme_may_have_any_case_and_spaces_around_the_token(header):
    assert Keyring.parse("k").find(header) is not None


def test_a_key_may_be_any_utf_8():
    assert Keyring.parse("schlüssel").find("Bearer schlüssel".encode()) is not None


def test_every_digest_is_compared_whichever_matches(monkeypatch):
    import hmac

    compared = []
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(a) or a == b)
    keyring = Keyring.parse("a,b,c,d")
    for token, places in (("a", 4), ("d", 4), ("x", 4)):
        compared.clear()
        keyring.find(f"Bearer {token}".encode())
        assert len(compared) == places


def test_the_keyring_holds_no_secret_in_clear():
    import pickle

    assert b"sesame" not in pickle.dumps(Keyring.parse("sesame:read:sesame-topics")._entries[0][0])


@pytest.mark.parametrize(
    "host, local",
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.1", False),
        ("example.com", False),
    ],
)
def test_only_loopback_addresses_are_local(host, local):
    assert is_loopback(host) is local


def test_a_public_address_needs_keys_or_an_explicit_word():
    nobody, someone = Keyring.parse(""), Keyring.parse("k")
    with pytest.raises(SettingsError, match="TOPICS_ALLOW_INSECURE_NO_AUTH"):
        check_exposure("0.0.0.0", nobody, False)
    assert "OPEN" in check_exposure("0.0.0.0", nobody, True)
    assert check_exposure("0.0.0.0", someone, False) is None
    assert "no API keys" in check_exposure("127.0.0.1", nobody, False)
