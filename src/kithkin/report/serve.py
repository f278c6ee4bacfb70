"""The page served on this machine alone, asking for news while a run goes on."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kithkin.errors import KithkinError
from kithkin.report.gather import gather
from kithkin.report.page import as_json, page
from kithkin.report.records import RECORDS, folders_of

HERE = "127.0.0.1"


def stamp_of(folders: Sequence[Path]) -> str:
    """Changes whenever a record does."""
    sha = hashlib.sha256()
    for folder in folders:
        for name in RECORDS:
            try:
                stat = (folder / name).stat()
                sha.update(f"{folder} {name} {stat.st_size} {stat.st_mtime_ns}\n".encode("utf-8", "replace"))
            except OSError:
                sha.update(b"-")
    return sha.hexdigest()[:16]


class News:
    """What the page shows now; gathered once for each change, however many ask."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self.lock = Lock()
        self.stamp = ""
        self.data: dict[str, Any] = {}

    def now(self) -> dict[str, Any]:
        with self.lock:
            folders = folders_of(self.paths)
            stamp = stamp_of(folders)
            if stamp != self.stamp:
                models = None if len(folders) == 1 else False  # asking those of many runs would keep the page waiting
                self.data, self.stamp = {**gather(self.paths, models), "stamp": stamp}, stamp
            return self.data


class Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a tab that was closed before it had its answer
            super().handle_error(request, client_address)


def server_for(paths: Sequence[Path], port: int) -> ThreadingHTTPServer:
    """A server on localhost. Port 0 takes any that is free."""
    news = News(paths)
    news.now()  # a folder that is no run is told before anything is served

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            if (self.headers.get("Host") or "").rsplit(":", 1)[0] not in (HERE, "localhost"):
                return self.answer(403, "text/plain", b"This page is for this machine alone.")  # not a name of it
            if asked.path not in ("/", "/data.json"):
                return self.answer(404, "text/plain", b"There is no such page.")
            try:
                data = news.now()
            except KithkinError as e:
                return self.answer(503, "text/plain", str(e).encode())
            if asked.path == "/":
                return self.answer(200, "text/html; charset=utf-8", page(data, live="data.json").encode())
            if parse_qs(asked.query).get("since") == [data["stamp"]]:
                return self.answer(204, "application/json", b"")
            return self.answer(200, "application/json", as_json(data).encode())

        def answer(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None: ...

    try:
        return Server((HERE, port), Handler)
    except (OSError, OverflowError) as e:
        raise KithkinError(f"Port {port} cannot be used ({e}).", "Give another --port; 0 takes any that is free.") from None
