"""grpcio: the form of a rejection, and retries after the pushback."""

import json
import math
import time
from urllib.parse import urlsplit

import grpc
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from report import all_at_once, check, exhaust, seen, server

TARGET = urlsplit(server).netloc
PATIENCE = 20
# waits in calls of 1.5 s each
LONG = 9
SHORT = 3
REJECTED = "8, RetryInfo, QuotaFailure, Retry-After"

# retries soon, unless the pushback says otherwise
POLICY = {
    "maxAttempts": 3,
    "initialBackoff": "0.01s",
    "maxBackoff": "0.01s",
    "backoffMultiplier": 1,
    "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
}
CONFIG = json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": POLICY}]})
RETRYING = [("grpc.service_config", CONFIG)]


def unpacked(error, kind):
    """Returns a detail of this kind, if any. `from_call` fails if code or message differ."""
    for detail in rpc_status.from_call(error).details:
        message = kind()
        if detail.Unpack(message):
            return message
    return None


def rejection(error):
    """Checks that an error is our rejection in every part, with equal texts everywhere."""
    delay = unpacked(error, error_details_pb2.RetryInfo).retry_delay.ToMilliseconds()
    violations = unpacked(error, error_details_pb2.QuotaFailure).violations
    fields = dict(error.trailing_metadata())
    seconds = int(fields["retry-after"])
    subject = violations[0].subject
    ok = (
        error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        and error.details() == f"Quota exhausted; retry in {seconds} s."
        and 0 < delay <= LONG * 1500
        and delay == int(fields["grpc-retry-pushback-ms"])
        and seconds == math.ceil(delay / 1000)
        and len(violations) == 1
        and subject == "policy:rpc"
    )
    code = error.code().value[0]
    return f"{code}, RetryInfo {delay} ms, {subject}, Retry-After: {seconds}", ok


def failed(call):
    """Returns the error of `call`."""
    try:
        answer = call()
    except grpc.RpcError as error:
        return error
    raise AssertionError(f"admitted: {answer}")


def empty():
    return health_pb2.HealthCheckRequest()


def unary(channel, fields, name):
    stub = health_pb2_grpc.HealthStub(channel)
    said, ok = rejection(failed(lambda: stub.Check(empty(), metadata=fields, timeout=PATIENCE)))
    return said, ok and len(seen(name)) == 1


def server_stream(channel, fields, _name):
    stub = health_pb2_grpc.HealthStub(channel)
    return rejection(failed(lambda: next(stub.Watch(empty(), metadata=fields, timeout=PATIENCE))))


def client_stream(channel, fields, _name):
    def messages():
        while True:
            yield bytes(1000)
            time.sleep(0.005)

    start = time.monotonic()
    gather = channel.stream_unary("/test.Echo/Gather")
    said, ok = rejection(failed(lambda: gather(messages(), metadata=fields, timeout=PATIENCE)))
    return said, ok and time.monotonic() - start < 5


def message(channel, _fields, _name):
    stub = health_pb2_grpc.HealthStub(channel)
    error = failed(lambda: stub.Check(empty(), timeout=PATIENCE))
    whole = error.details() == "Request rejected: missing caf\u00e9 100%."
    same = rpc_status.from_call(error).message == error.details()
    return error.details(), error.code() is grpc.StatusCode.INVALID_ARGUMENT and whole and same


def pushback(channel, fields, name):
    stub = health_pb2_grpc.HealthStub(channel)
    answer = stub.Check(empty(), metadata=fields, timeout=PATIENCE)
    calls = seen(name)
    gap = calls[-1]["asked"] - calls[0]["answered"]
    delay = calls[0]["pushback"]
    statuses = [int(call["grpc_status"] or 0) for call in calls]
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    ok = serving and statuses == [8, 0] and 0 < delay <= gap < delay + 2000
    return f"{', '.join(map(str, statuses))}, asked {delay:g} ms, waited {gap:.0f} ms", ok


def pushback_never(channel, fields, name):
    stub = health_pb2_grpc.HealthStub(channel)
    fields = [*fields, ("x-costly", "1")]
    error = failed(lambda: stub.Check(empty(), metadata=fields, timeout=PATIENCE))
    calls = seen(name)
    delay = calls[0]["pushback"]
    once = len(calls) == 1 and delay == -1 and unpacked(error, error_details_pb2.RetryInfo) is None
    code = error.code()
    happened = f"{code.value[0]}, asked {delay:g}, {len(calls)} call"
    return happened, code is grpc.StatusCode.RESOURCE_EXHAUSTED and once


def asks(what, expected, wait, options, act):
    """Runs one check with its own channel and account, which has to wait."""
    name = f"grpcio-{what.replace(' ', '-').replace(',', '')}"

    def run():
        exhaust(name, wait)
        with grpc.insecure_channel(TARGET, options) as channel:
            return act(channel, [("x-client", name)], name)

    check(f"grpcio: {what}", expected, run)


all_at_once(
    asks,
    [
        ("unary", REJECTED, LONG, [], unary),
        ("server stream", REJECTED, LONG, [], server_stream),
        ("client stream, still sending", f"{REJECTED}, at once", LONG, [], client_stream),
        ("message", "caf\u00e9 100%", LONG, [], message),
        ("pushback", "8, waits the pushback, 0", SHORT, RETRYING, pushback),
        ("pushback -1", "8, no retry", SHORT, RETRYING, pushback_never),
    ],
)
