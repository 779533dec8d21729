"""Plain HTTP next to WebSockets on one port."""

from __future__ import annotations

import asyncio
import gzip
import http.client
from urllib.parse import quote

import pytest


async def test_health(gateway):
    """/healthz says ok while the loop lives."""
    reply = await gateway.get("/healthz")
    assert (reply.status, reply.json) == (200, {"status": "ok"})


async def test_readiness_gives_reasons(gateway):
    """/readyz is 200 without reasons and 503 with them."""
    assert (await gateway.get("/readyz")).json == {"ready": True, "reasons": []}
    gateway.reasons.append("draining")
    reply = await gateway.get("/readyz")
    assert (reply.status, reply.json) == (503, {"ready": False, "reasons": ["draining"]})


async def test_metrics(gateway):
    """/metrics is Prometheus text."""
    reply = await gateway.get("/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b"\ntokenwire_connections 0.0\n" in reply.body


async def test_answers_carry_no_versions(gateway):
    """Strangers do not learn what we run on."""
    for target in ("/", "/healthz", "/nothing"):
        assert "server" not in (await gateway.get(target)).headers


async def test_json_twins(gateway):
    """The read commands have HTTP twins."""
    assert (await gateway.get("/v1/models")).json["data"][0]["owner"] == "local"
    assert (await gateway.get("/v1/responses/resp_1")).json == {"id": "resp_1"}
    reply = await gateway.get("/v1/conversations/conv_1/items?after=item_1&limit=3&other=1")
    assert reply.json == {"conversation": "conv_1", "after": "item_1", "limit": 3}
    assert reply.headers["cache-control"] == "no-store"


async def test_protocol_errors_keep_status_and_fields(gateway):
    """A ProtocolError becomes its status and OpenAI's JSON error."""
    reply = await gateway.get("/v1/responses/resp_2")
    assert reply.status == 404
    assert reply.json["error"] == {
        "type": "invalid_request_error",
        "code": "response_not_found",
        "message": "no response resp_2",
        "param": "response_id",
    }


async def test_retry_hint(gateway):
    """Where waiting helps, HTTP clients get Retry-After in whole seconds, rounded up."""
    reply = await gateway.get("/v1/conversations/conv_1")
    assert (reply.status, reply.headers["retry-after"], reply.headers["retry-after-ms"]) == (503, "2", "1500")


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "x", "", "1.5", "٣", "99999999999999999999"])
async def test_list_limit_is_checked(gateway, limit):
    """A limit out of range is refused by name."""
    reply = await gateway.get(f"/v1/conversations?limit={quote(limit)}")
    assert (reply.status, reply.json["error"]["param"]) == (400, "limit")


async def test_bugs_show_no_details(gateway, caplog):
    """A fault of ours is a plain 500; the details are in the log."""
    reply = await gateway.get("/v1/responses/bug")
    assert reply.status == 500
    assert b"secret" not in reply.body
    assert "http route failed" in caplog.text


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("body", [b"", b'{"model":"m","input":"hi"}', b"x" * 300_000])
async def test_plain_requests_to_a_socket_path_get_426(gateway, method, body):
    """SDKs and Codex that fall back to POST read at once that only WebSocket is served, whatever body they send."""
    reply = await gateway.request(method, "/v1/responses", {"Content-Type": "application/json"}, body)
    assert reply.status == 426
    assert (reply.headers["upgrade"], reply.headers["connection"]) == ("websocket", "Upgrade, close")
    assert reply.json["error"]["code"] == "upgrade_required"


async def test_chunked_post_gets_426(gateway):
    """A body of unknown length is no reason to drop the request."""
    reply = await gateway.request("POST", "/v1/responses", {"Transfer-Encoding": "chunked"})
    assert reply.status == 426


async def test_an_ordinary_http_client_can_post(gateway):
    """http.client reads the 426, too."""

    def post() -> tuple[int, bytes]:
        client = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
        client.request("POST", "/v1/responses", body=b"{}" * 50_000)
        response = client.getresponse()
        try:
            return response.status, response.read()
        finally:
            client.close()

    status, body = await asyncio.to_thread(post)
    assert (status, b"upgrade_required" in body) == (426, True)


async def test_other_methods(gateway):
    """Everything but GET and HEAD is 405 with Allow; on a path that does not exist it is 404."""
    reply = await gateway.request("POST", "/v1/models", body=b"{}")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
    assert (await gateway.request("POST", "/nothing")).status == 404


async def test_head(gateway):
    """HEAD has GET's headers and no body."""
    full, head = await gateway.get("/"), await gateway.request("HEAD", "/")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(full.body))


async def test_unknown_path(gateway):
    """404 is JSON."""
    reply = await gateway.get("/v1/nothing")
    assert (reply.status, reply.json["error"]["code"]) == (404, "not_found")


async def test_page(gateway):
    """Page files come with their type, a strict policy and an ETag."""
    reply = await gateway.get("/")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert f"connect-src 'self' ws://127.0.0.1:{gateway.port} wss://127.0.0.1:{gateway.port};" in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert (await gateway.get("/js/app.js")).headers["content-type"] == "text/javascript; charset=utf-8"


async def test_page_is_revalidated(gateway):
    """An unchanged file is 304; a changed one comes anew."""
    tag = (await gateway.get("/js/app.js")).headers["etag"]
    same = await gateway.get("/js/app.js", {"If-None-Match": f'"other", {tag}'})
    assert (same.status, same.body) == (304, b"")
    (gateway.web / "js" / "app.js").write_text("export const a = 12;")
    changed = await gateway.get("/js/app.js", {"If-None-Match": tag})
    assert (changed.status, changed.body) == (200, b"export const a = 12;")


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [("gzip, br", "gzip"), ("br;q=1.0, gzip;q=0.5", "gzip"), ("gzip;q=0", None), ("gzip;q=0.0, *", None), ("br", None)],
)
async def test_page_is_compressed_for_whom_it_may(gateway, accepted, encoding):
    (gateway.web / "js" / "app.js").write_text("export const a = 1;\n" * 100)
    reply = await gateway.get("/js/app.js", {"Accept-Encoding": accepted})
    assert (reply.status, reply.headers.get("content-encoding")) == (200, encoding)
    assert reply.headers["vary"] == "Accept-Encoding"
    body = gzip.decompress(reply.body) if encoding else reply.body
    assert body == b"export const a = 1;\n" * 100


@pytest.mark.parametrize(
    "target",
    [
        "/../secret.js",
        "/js/../../secret.js",
        "/%2e%2e/secret.js",
        "/..%2fsecret.js",
        "/js/..%5c..%5csecret.js",
        "//etc/passwd",
        "/js/app.js/../../../secret.js",
        "/js",
        "/js/",
        "/notes.txt",
        "/.hidden.js",
        "/index.html%00",
        "/%ff%fe",
        "http://127.0.0.1/js/app.js",
        "*",
    ],
)
async def test_nothing_but_page_files(gateway, target):
    """No path leads out of the folder, into a listing, or to a file that is not part of the page."""
    assert (await gateway.get(target)).status == 404


async def test_deleted_page_file(gateway):
    """A file that was deleted while we run is 404."""
    (gateway.web / "js" / "app.js").unlink()
    assert (await gateway.get("/js/app.js")).status == 404
