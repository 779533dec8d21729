"""Redis's errors in our words; URLs without their passwords."""

from __future__ import annotations

import pytest
from redis import exceptions
from redis._parsers.base import BaseParser

from server.config import StoreConfig
from server.store.base import StoreError, StoreUnavailableError
from server.store.connection import connection_options
from server.store.errors import masked, translated


@pytest.mark.parametrize(
    "answer",
    [
        "READONLY You can't write against a read only replica.",
        "READONLY You can't write against a read only replica. script: f00, on @user_script:1.",
        "LOADING Redis is loading the dataset in memory",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "MISCONF Errors writing to the AOF file: No space left on device",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "NOREPLICAS Not enough good replicas to write.",
        "BUSY Redis is busy running a script.",
        "CLUSTERDOWN The cluster is down",
        "NOAUTH Authentication required.",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "ERR max number of clients reached",
    ],
)
def test_answers_that_pass_are_unavailable(answer):
    """What a server says while it cannot serve means: try again later."""
    error = translated(BaseParser.parse_error(answer), "redis://host")
    assert isinstance(error, StoreUnavailableError)
    assert "redis://host" in str(error)


@pytest.mark.parametrize(
    "fault",
    [
        exceptions.ConnectionError("Connection closed by server."),
        exceptions.TimeoutError("Timeout reading from host"),
        exceptions.AuthenticationError("invalid password"),
        exceptions.InvalidResponse("Protocol error"),
        ConnectionResetError(104, "Connection reset by peer"),
        TimeoutError(),
        OSError("two\nlines"),
    ],
)
def test_faults_on_the_way_are_unavailable(fault):
    """A broken or silent connection means: try again later; the text is one line."""
    error = translated(fault, "redis://host")
    assert isinstance(error, StoreUnavailableError)
    assert "\n" not in str(error)
    assert not str(error).endswith(".")  # more is said behind it


@pytest.mark.parametrize("answer", ["WRONGTYPE Operation against a key", "ERR unknown command 'XADD'", "NOPERM no"])
def test_other_answers_are_plain_store_errors(answer):
    """A refusal that waiting does not mend is not called unavailable."""
    error = translated(BaseParser.parse_error(answer), "redis://host")
    assert type(error) is StoreError


def test_a_sign_in_error_is_found_inside_redis_pys_wrapper():
    """redis-py hides what happens while it connects in a ConnectionError."""
    wrapper = exceptions.ConnectionError("wrapped")
    wrapper.__cause__ = BaseParser.parse_error("NOAUTH Authentication required.")
    assert "password" in str(translated(wrapper, "redis://host"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://ann:s3cret@host/0", "redis://***@host/0"),
        ("redis://:s3cret@host", "redis://***@host"),
        ("rediss://s3cret@host", "rediss://***@host"),
        ("redis://:s3/cr@et@host", "redis://***@host"),
        ("unix:///run/socket?db=1&password=s3cret", "unix:///run/socket?db=1&password=***"),
        ("rediss://host?ssl_password=s3cret&db=1", "rediss://host?ssl_password=***&db=1"),
        ("ann:s3cret@host", "***@host"),
        ("host:6379", "host:6379"),
    ],
)
def test_urls_are_shown_without_secrets(url, shown):
    """Also where the URL is malformed."""
    assert masked(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:6379",
        "http://s3cret@host",
        "redis://:s3cret@host:port",
        "redis://:s3cret/@host:1",
        "redis://[::1",
        "redis://host?no_such_option=1",
        "redis://host?socket_timeout=soon",
        "unix://",
        "redis://host:70000",
        "redis://host/abc",
        "rediss://host/1/2",
        "redis://host/-1",
    ],
)
def test_malformed_urls_are_one_line(url):
    """ValueError with the forms that are right, and no secret."""
    with pytest.raises(ValueError, match="redis://") as refused:
        connection_options(url, StoreConfig())
    assert "s3cret" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_the_url_wins_over_our_settings():
    """Time-outs may be set in the URL; retries are few."""
    options = connection_options("redis://host?socket_timeout=9", StoreConfig(operation_timeout_s=2))
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (9, 2)
    assert options["retry"].get_retries() == 1
