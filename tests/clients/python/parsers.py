"""http_sf reads, in every answer of the corpus, the numbers it was made from."""

import http_sf

from report import check, plain, server

cases = plain.request("GET", f"{server}/corpus").json()
for n, told in enumerate(cases):
    answer = plain.request("GET", f"{server}/corpus/{n}")
    assert answer.status == told["status"], f"case {n}: {answer.status}"
    told["headers"] = answer.headers


def field(told, name, kind):
    return http_sf.parse(told["headers"][name].encode(), tltype=kind)


def lists(told):
    read = field(told, "ratelimit-policy", "list")
    policies = [{"name": name, **parameters} for name, parameters in read]
    read = field(told, "ratelimit", "list")
    limits = [{"name": name, "t": None, **parameters} for name, parameters in read]
    return policies == told["policies"] and limits == told["limits"]


def policies(told):
    read = field(told, "ratelimit-policy", "list")
    return [(q, parameters) for q, parameters in read] == [
        (policy["q"], {"w": policy["w"]}) for policy in told["policies"]
    ]


def dictionary(told):
    read = field(told, "ratelimit", "dictionary")
    policy, limit = told["policies"][0], told["limits"][0]
    meant = {"limit": policy["q"], "remaining": limit["r"], "reset": limit["t"] or 0}
    return policies(told) and {name: value for name, (value, _) in read.items()} == meant


def reads(family, parse):
    def run():
        asked = [told for told in cases if told["family"] == family]
        wrong = [told for told in asked if not parse(told)]
        worst = f": {dict(wrong[0]['headers'])}" if wrong else ""
        return f"{len(asked) - len(wrong)} of {len(asked)}{worst}", len(asked) >= 10 and not wrong

    check(f"http_sf: {family}", "the numbers of every field", run)


reads("draft11", lists)
reads("draft07", dictionary)
reads("draft06", policies)
