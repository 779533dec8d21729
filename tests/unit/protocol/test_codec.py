"""JSON in and out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import decode_object, encode, with_stream_id
from protocol.errors import ProtocolError

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)


def test_encoding_is_compact():
    """No white space, no escapes that UTF-8 does not need."""
    assert encode({"a": [1, "é\n"], "b": None}) == '{"a":[1,"é\\n"],"b":null}'.encode()


@pytest.mark.parametrize("frame", [b"[]", b"null", b"3", b'"x"'])
def test_only_objects_are_decoded(frame):
    """Other JSON values are refused."""
    with pytest.raises(ProtocolError, match="one JSON object"):
        decode_object(frame)


def test_errors_do_not_repeat_the_frame():
    """What was wrong and where, never what was in it."""
    with pytest.raises(ProtocolError) as caught:
        decode_object(b'{"token":"secret" oops}')
    assert "secret" not in caught.value.message
    assert "column 19" in caught.value.message


def test_no_lane_changes_nothing():
    """The very same bytes go to every client that named no lane."""
    event = b'{"type":"x"}'
    assert with_stream_id(event, None) is event


@given(st.dictionaries(TEXT.filter(lambda key: key != "stream_id"), JSON, min_size=1), TEXT)
def test_stream_id_is_put_in_front(event, stream_id):
    """The lane is added and everything else stays as it was."""
    data = with_stream_id(encode(event), stream_id)
    again = json.loads(data)
    assert next(iter(again)) == "stream_id"
    assert again.pop("stream_id") == stream_id
    assert encode(again) == encode(json.loads(encode(event)))
    assert decode_object(data)["stream_id"] == stream_id


@given(st.dictionaries(TEXT, JSON))
def test_objects_round_trip(value):
    """What goes out comes in again."""
    assert decode_object(encode(value)) == json.loads(encode(value))
