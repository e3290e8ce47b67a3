"""Clients of HTTP that retry by themselves: they wait for `Retry-After`, and the first retry passes.
Their settings are the usual ones."""

import httpx
import tenacity
import urllib3
from httpx_retries import RetryTransport

from report import all_at_once, check, exhaust, seen, server

URL = f"{server}/"
by_httpx = httpx.Client(transport=RetryTransport())


def wanted(error):
    """Returns the wait that a denial reports."""
    return float(error.response.headers["retry-after"])


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(httpx.HTTPStatusError),
    wait=tenacity.wait_exception(wanted),
    stop=tenacity.stop_after_attempt(3),
)
def by_tenacity(headers):
    return httpx.get(URL, headers=headers).raise_for_status().status_code


clients = {
    "tenacity": by_tenacity,
    "urllib3": lambda headers: urllib3.request("GET", URL, headers=headers).status,
    "httpx-retries": lambda headers: by_httpx.get(URL, headers=headers).status_code,
}


def obeys(client, get):
    exhaust(client, 4)
    status = get({"x-client": client})
    calls = seen(client)
    gap = (calls[-1]["asked"] - calls[0]["answered"]) / 1000
    delay = calls[0]["retry_after"]
    statuses = [call["status"] for call in calls]
    waited = delay >= 1 and delay - 0.01 <= gap < delay + 2
    ok = status == 200 and statuses == [429, 200] and waited
    return f"{', '.join(map(str, statuses))}; asked {delay:g} s, waited {gap:.2f} s", ok


def asks(client, get):
    check(client, "429, waits Retry-After, 200", lambda: obeys(client, get))


all_at_once(asks, list(clients.items()))
