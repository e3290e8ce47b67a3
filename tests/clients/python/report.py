"""Helpers of the checks: a line of JSON for each, as tests/clients/main.rs reads them."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from threading import Lock

import urllib3

server = os.environ["SERVER"]
# without built-in retries
plain = urllib3.PoolManager(retries=False)
one_line = Lock()


def check(client, expected, act):
    """Runs `act`, which returns what happened, and whether it was expected."""
    try:
        happened, ok = act()
    except Exception as error:
        happened, ok = repr(error), False
    row = {"client": client, "version": version(client.split(":")[0])}
    row |= {"expected": expected, "happened": happened, "ok": ok}
    with one_line:
        print(json.dumps(row), flush=True)


def all_at_once(act, argument_lists):
    """Calls `act` with each list of arguments, and fails if one fails."""
    with ThreadPoolExecutor(len(argument_lists)) as pool:
        for done in [pool.submit(act, *arguments) for arguments in argument_lists]:
            done.result()


def exhaust(client, n):
    """Makes `client` wait for the time of `n` calls, and clears its calls."""
    answer = plain.request("POST", f"{server}/exhaust/{client}/{n}")
    assert answer.status == 200, answer.status


def seen(client):
    """Returns the calls of `client` that the server saw."""
    return plain.request("GET", f"{server}/seen/{client}").json()
