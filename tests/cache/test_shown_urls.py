"""What is said of a URL: never a password, however badly it is written; and tiers that are one place by two names."""

import pytest

from spyre_cache.errors import CacheUnavailableError
from spyre_cache.stores.redis_client import broker_unavailable, connect, redis_address
from spyre_cache.stores.urls import hide_passwords, parse_tiers, shown

CARELESS = [
    "redis://:se/cret@h/0", "redis://u:p@ss secret@h", "redis://u:top#secret@h", "redis://u:pw?secret@h",
    "redis:/u:topsecret@h/0", "rediss//u:topsecret@h", "redis://u:topsecret@h/0?x=a@b", "redis://:topsecret",
    "redis://u:secret@[::1/0", "redis://u:secret@h:x/0", "redis:u:secret@h", "u:secret@h", "//u:secret@h",
    "redis://h/0?password=a@secret", "REDIS://u:se/cret@h", "s3://key:se/cret@bucket", "redis://secret/x@h",
]  # fmt: skip


@pytest.mark.parametrize("url", CARELESS)
def test_password_is_not_shown_however_it_is_written(url):
    assert "cret" not in shown(url)
    for parse in (redis_address, parse_tiers, lambda text: parse_tiers(f"/a,{text}")):
        said = ""
        try:
            parse(url)
        except CacheUnavailableError as error:
            said = str(error)
        assert "cret" not in said
    if "://" in url and "@" in url:
        assert "cret" not in hide_passwords(f"ValueError: {url} is none").rpartition("@")[0]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://u:p@h:1/2?prefix=x", "redis://h:1/2"),
        ("redis://u:p@ss@h/0", "redis://h/0"),
        ("rediss://[::1]:6379/0", "rediss://[::1]:6379/0"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("file:///data/@me/x", "file:///data/@me/x"),
        ("/home/me@work/cache", "/home/me@work/cache"),
    ],
)
def test_what_is_no_secret_is_shown(url, said):
    assert shown(url) == said


def test_text_of_others_loses_what_stands_before_the_last_at():
    text = "ValueError: redis://u:p@ss word@h/0\n  at line 1, me@work"
    assert hide_passwords(text) == "ValueError: redis://…@h/0\n  at line 1, me@work"


@pytest.mark.parametrize(
    "url", ["redis://[::1/0", "redis://h\n/0", "redis://h h/0", "redis://\N{DOUBLE COLON EQUAL}/0"]
)
def test_redis_url_that_is_none_is_refused_with_a_sentence(url):
    with pytest.raises(CacheUnavailableError, match="a Redis is given as"):
        redis_address(url)


@pytest.mark.parametrize(
    ("tiers", "words"),
    [
        ("s3://spyre/b,s3://spyre/b/", "came twice"),
        ("s3://spyre/b/c,s3://spyre//b/c", "came twice"),
        ("redis://h,redis://u:p@h:6379/0", "came twice"),
        ("file:///{dir}/inner", "one within the other"),
        ("file:///{dir}", "one within the other"),
        ("file:///{above}", "one within the other"),
        ("file:///{link}/x", "one within the other"),
        ("file:///shared,file:///shared/%69nner", "one within the other"),
        ("file:///shared,file:///shared/", "came twice"),
        ("s3://spyre/a\nb", "control characters"),
        ("s3://spyre/a%0ab", "control characters"),
        ("redis://h/0\x1b", "control characters"),
        ("rediss//h/0", "is none"),
        ("redis:/h/0", "is none"),
    ],
)
def test_tiers_that_are_one_place_or_none_are_refused_by_name(tmp_path, tiers, words):
    folder = tmp_path / "cache"
    (tmp_path / "link").symlink_to(folder)
    places = {"dir": str(folder)[1:], "above": str(tmp_path)[1:], "link": str(tmp_path / "link")[1:]}
    with pytest.raises(CacheUnavailableError, match=words):
        parse_tiers(f"{folder},{tiers.format(**places)}")


def test_tiers_side_by_side_are_taken(tmp_path):
    _, remotes = parse_tiers(
        f"{tmp_path}/cache,redis://h/0,redis://h/1,redis://h/0?prefix=x,s3://b/x,s3://b/y,file://{tmp_path}/cache2"
    )
    assert len(remotes) == 6


def test_error_of_the_broker_says_that_it_is_the_brokers():
    address = redis_address("redis://127.0.0.1:1/0")
    with pytest.raises(CacheUnavailableError) as caught, broker_unavailable(address.shown):
        connect(address, retries=0).ping()
    assert caught.value.service == "broker"
