"""Tells a surgetank daemon of bursts to come. The standard library alone; copy this file into an application.

    import surgetank
    surgetank.boost("data", burst_bytes=8 << 30, starts_in_s=20)   # a checkpoint of 8 GiB in 20 s
    ...
    surgetank.drain("data")                                        # it is over

Only root and the daemon's own user may talk to the daemon.
"""

import json
import os
import socket

DEFAULT_SOCKET = "/run/surgetank/control.sock"


class Refused(Exception):
    """What the daemon does not do, in one sentence with the reason."""


def ask(command, path=None, timeout_s=30.0, **fields):
    """Sends one request and returns the daemon's JSON answer.

    `path` is the control socket: $SURGETANK_SOCKET or /run/surgetank/control.sock by default.
    Raises Refused if the daemon says no, OSError if there is none or it does not answer in time.
    """
    path = path or os.environ.get("SURGETANK_SOCKET") or DEFAULT_SOCKET
    request = {"command": command, **{name: value for name, value in fields.items() if value is not None}}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(path)
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as answers:
            line = answers.readline()
    if not line.endswith(b"\n"):
        raise OSError(f"the daemon at {path} went away")
    answer = json.loads(line)
    if "error" in answer:
        raise Refused(answer["error"])
    return answer["ok"]


def boost(device, burst_bytes=None, starts_in_s=None, **where):
    """A burst comes: of so many bytes, in so many seconds; what is not known may be left out.

    Raises ValueError or OverflowError for what is no number of bytes or seconds (nan, inf, less than 0 bytes).
    """
    starts_in_ms = None if starts_in_s is None else max(0, round(starts_in_s * 1000))
    # 8e9 is a number of bytes as well.
    burst_bytes = None if burst_bytes is None else round(burst_bytes)
    if burst_bytes is not None and burst_bytes < 0:
        raise ValueError(f"burst_bytes is {burst_bytes}: no burst writes less than nothing")
    ask("boost", device=device, burst_bytes=burst_bytes, starts_in_ms=starts_in_ms, **where)


def drain(device, **where):
    """The burst is over: the boost ends now, and not when the inactivity delay is over."""
    ask("drain", device=device, **where)


def status(**where):
    """What `surgetank status --json` prints."""
    return ask("status", **where)
