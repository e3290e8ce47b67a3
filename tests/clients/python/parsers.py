"""http_sf reads the original numbers from every answer of the corpus."""

import http_sf

from report import check, plain, server

cases = plain.request("GET", f"{server}/corpus").json()
for n, sample in enumerate(cases):
    answer = plain.request("GET", f"{server}/corpus/{n}")
    assert answer.status == sample["status"], f"case {n}: {answer.status}"
    sample["headers"] = answer.headers


def field(sample, name, kind):
    return http_sf.parse(sample["headers"][name].encode(), tltype=kind)


def lists(sample):
    read = field(sample, "ratelimit-policy", "list")
    policies = [{"name": name, **parameters} for name, parameters in read]
    read = field(sample, "ratelimit", "list")
    limits = [{"name": name, "t": None, **parameters} for name, parameters in read]
    return policies == sample["policies"] and limits == sample["limits"]


def policies(sample):
    read = field(sample, "ratelimit-policy", "list")
    return [(q, parameters) for q, parameters in read] == [
        (policy["q"], {"w": policy["w"]}) for policy in sample["policies"]
    ]


def dictionary(sample):
    read = field(sample, "ratelimit", "dictionary")
    policy, limit = sample["policies"][0], sample["limits"][0]
    meant = {"limit": policy["q"], "remaining": limit["r"], "reset": limit["t"] or 0}
    return policies(sample) and {name: value for name, (value, _) in read.items()} == meant


def reads(family, parse):
    def run():
        asked = [sample for sample in cases if sample["family"] == family]
        wrong = [sample for sample in asked if not parse(sample)]
        worst = f": {dict(wrong[0]['headers'])}" if wrong else ""
        return f"{len(asked) - len(wrong)} of {len(asked)}{worst}", len(asked) >= 10 and not wrong

    check(f"http_sf: {family}", "the numbers of every field", run)


reads("ratelimit", lists)
reads("draft07", dictionary)
reads("draft06", policies)
