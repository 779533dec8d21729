"""The chat page's files, and the headers that keep a page with other people's text in it harmless."""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[2]
WEB_ROOT: Final = _ROOT / "web"
# Where the set-up puts what the page loads when it is on screen; without it answers are shown as plain text.
LIBRARY_ROOT: Final = _ROOT / ".tools" / "node_modules"
LIBRARIES: Final = {
    "/libraries/marked.js": "marked/lib/marked.esm.js",
    "/libraries/purify.js": "dompurify/dist/purify.es.mjs",
    "/libraries/highlight.js": "@highlightjs/cdn-assets/es/highlight.min.js",
}

# Only these are served: a stray file in the folder stays private.
CONTENT_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".webmanifest": "application/manifest+json",
}
# Pictures and fonts are compressed already.
_COMPRESSED: Final = frozenset({".html", ".css", ".js", ".svg", ".webmanifest"})
_HOST_SOURCE: Final = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file's content as of one version of it. gzipped: None where that saves nothing."""

    body: bytes
    gzipped: bytes | None
    content_type: str
    etag: str
    version: tuple[int, int]


class Page:
    """The files under `root`, found once; what is not in that list does not exist, whatever the path says.

    libraries: the folder that npm installed the page's libraries into.
    """

    def __init__(self, root: Path = WEB_ROOT, libraries: Path = LIBRARY_ROOT) -> None:
        self._paths = {
            "/" + path.relative_to(root).as_posix(): path
            for path in sorted(root.rglob("*"))
            if path.is_file() and path.suffix in CONTENT_TYPES and not _is_hidden(path.relative_to(root))
        }
        found = {url_path: libraries / name for url_path, name in LIBRARIES.items()}
        self._paths |= {url_path: path for url_path, path in found.items() if path.is_file()}
        if "/index.html" in self._paths:
            self._paths["/"] = self._paths["/index.html"]
        self._files: dict[Path, PageFile] = {}

    def get(self, url_path: str) -> PageFile | None:
        """Return the file at a decoded URL path; None where there is none. Reads it again only when it changed."""
        path = self._paths.get(url_path)
        if path is None:
            return None
        try:
            stat = path.stat()
            version = (stat.st_mtime_ns, stat.st_size)
            known = self._files.get(path)
            if known is None or known.version != version:
                known = self._files[path] = _read(path, version, _suffix(url_path))
        except OSError:  # deleted since
            return None
        return known


def security_headers(host: str | None) -> dict[str, str]:
    """Headers for page files: scripts, styles and connections from here only, no frames around it, and no way from a
    string to markup but through DOMPurify.

    host: the request's Host header, checked before. Its ws:// and wss:// addresses are named because older
    Safari does not count them as 'self'.
    """
    sockets = f" ws://{host} wss://{host}" if host and _HOST_SOURCE.fullmatch(host) else ""
    policy = (
        f"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        f"manifest-src 'self'; connect-src 'self'{sockets}; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify"
    )
    return {
        "Content-Security-Policy": policy,
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Frame-Options": "DENY",
    }


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _suffix(url_path: str) -> str:
    return Path(url_path).suffix or ".html"


def _read(path: Path, version: tuple[int, int], suffix: str) -> PageFile:
    body = path.read_bytes()
    gzipped = gzip.compress(body, mtime=0) if suffix in _COMPRESSED else body
    etag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    return PageFile(body, gzipped if len(gzipped) < len(body) else None, CONTENT_TYPES[suffix], etag, version)
