"""Denied uploads, one after the other over a connection that is kept if the server keeps it: each ends
with its 429. Their settings are the usual ones."""

import os
from collections import Counter

import httpx
import requests

from report import all_at_once, check, server

# bytes and requests
SIZES = {
    "1 B": (1, 100),
    "1 kB": (1_000, 100),
    "50 kB": (50_000, 200),
    "1 MB": (1_000_000, 20),
    "100 MB": (100_000_000, 2),
}
BOUND = 65_536
path = os.environ.get("UPLOAD", "/upload")
ways = {"direct": server + path}
if proxy := os.environ.get("PROXY"):
    ways |= {"nginx": proxy + path, "nginx, its defaults": f"{proxy}/default{path}"}


def by_requests():
    session = requests.Session()
    return lambda url, body: session.post(url, data=body).status_code


def by_httpx():
    client = httpx.Client()
    return lambda url, body: client.post(url, content=body).status_code


def outcome(send, url, body):
    try:
        return send(url, body)
    except (requests.RequestException, httpx.HTTPError) as error:
        return type(error).__name__


def uploads(send, url):
    """Returns the lost denials of each size, and whether none was lost that need not be."""
    found, ok = [], True
    for name, (size, count) in SIZES.items():
        body = b"x" * size
        ends = Counter(outcome(send, url, body) for _ in range(count))
        lost = count - ends.pop(429, 0)
        why = f" {dict(ends)}" if lost else ""
        found.append(f"{name}: {lost} of {count}{why}")
        ok &= lost == 0 or size > BOUND
    return "; ".join(found), ok


def all_sizes(client, connect, way, url):
    check(f"{client}: {way}", "none lost up to 64 KiB", lambda: uploads(connect(), url))


clients = {"requests": by_requests, "httpx": by_httpx}
for way, url in ways.items():
    all_at_once(all_sizes, [(client, connect, way, url) for client, connect in clients.items()])
