"""The page's own folder, as it is served."""

from __future__ import annotations

import gzip

from server.gateway.page import Page, security_headers


def test_a_missing_folder_is_an_empty_page(tmp_path):
    """A server without the page's files serves the rest."""
    assert Page(tmp_path / "none").get("/") is None


def test_the_real_page_is_found():
    """The repository's page is served at /."""
    page = Page().get("/")
    assert page is not None
    assert b"<html" in page.body


def test_a_file_is_read_once(tmp_path):
    """The same version is the same object."""
    (tmp_path / "index.html").write_text("x")
    page = Page(tmp_path)
    assert page.get("/") is page.get("/index.html")


def test_only_the_libraries_by_name_are_served_from_their_folder(tmp_path):
    """What else npm installed stays private; without a set-up there are none."""
    (tmp_path / "npm" / "marked" / "lib").mkdir(parents=True)
    (tmp_path / "npm" / "marked" / "lib" / "marked.esm.js").write_text("export {};")
    (tmp_path / "npm" / "marked" / "lib" / "other.js").write_text("export {};")
    page = Page(tmp_path / "web", tmp_path / "npm")
    found = page.get("/libraries/marked.js")
    assert found is not None
    assert (found.body, found.content_type) == (b"export {};", "text/javascript; charset=utf-8")
    for path in ("/libraries/other.js", "/libraries/purify.js", "/marked/lib/marked.esm.js", "/libraries/../marked.js"):
        assert page.get(path) is None


def test_a_module_script_is_served_as_one_whatever_its_suffix(tmp_path):
    """Browsers refuse modules of another type, and npm's files may end in .mjs."""
    (tmp_path / "dompurify" / "dist").mkdir(parents=True)
    (tmp_path / "dompurify" / "dist" / "purify.es.mjs").write_text("export {};")
    found = Page(tmp_path / "none", tmp_path).get("/libraries/purify.js")
    assert found is not None
    assert found.content_type == "text/javascript; charset=utf-8"


def test_text_is_compressed_where_that_saves_something(tmp_path):
    (tmp_path / "long.js").write_text("x = 1;\n" * 1000)
    (tmp_path / "short.js").write_text("x")
    (tmp_path / "picture.png").write_bytes(b"P" * 1000)
    page = Page(tmp_path)
    long, short, picture = (page.get(f"/{name}") for name in ("long.js", "short.js", "picture.png"))
    assert long is not None
    assert short is not None
    assert picture is not None
    assert long.gzipped is not None
    assert gzip.decompress(long.gzipped) == long.body
    assert (short.gzipped, picture.gzipped) == (None, None)


def test_policy_names_only_plain_hosts():
    """A Host header cannot add to the policy."""
    assert "ws://a.example:80 wss://a.example:80;" in security_headers("a.example:80")["Content-Security-Policy"]
    for host in ("x; script-src *", "[::1]:8000", "", None):
        assert "connect-src 'self';" in security_headers(host)["Content-Security-Policy"]
