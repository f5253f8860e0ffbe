"""Reads messages as h11 does, strictly, and says of each what it is.

Input: a line for each of them, `request METHOD HEX` or `response METHOD HEX`, where METHOD is that of the request that a response is to.
Output: a line for each, JSON: {"start": [...], "headers": [[name, value]...], "body": HEX, "rest": HEX} or {"error": TEXT}.
"""
import json
import sys

import h11

FIELDS_MAX = 100 * 1024


def messages(kind, method, data):
    role = h11.SERVER if kind == "request" else h11.CLIENT
    connection = h11.Connection(role, max_incomplete_event_size=FIELDS_MAX)
    if role is h11.CLIENT:
        connection.send(h11.Request(method=method, target="/", headers=[("Host", "h")]))
        connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    connection.receive_data(b"")
    start, headers, body = None, [], b""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            start, headers = [event.method, event.target], event.headers
        elif isinstance(event, h11.Response):
            start, headers = [str(event.status_code).encode(), event.reason], event.headers
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            rest, _ = connection.trailing_data
            text = lambda value: bytes(value).decode("latin-1")
            pairs = [[text(name), text(value)] for name, value in headers.raw_items()]
            return {"start": [text(word) for word in start], "headers": pairs, "body": body.hex(), "rest": bytes(rest).hex()}
        else:
            return {"error": repr(event)}


for line in sys.stdin:
    kind, method, data = line.rstrip("\n").split(" ")
    try:
        said = messages(kind, method, bytes.fromhex(data))
    except h11.ProtocolError as error:
        said = {"error": str(error)}
    print(json.dumps(said))
