"""A strict HTTP/1.1 upstream on h11: checks every request's checksum and answers as its target asks.

Prints `port N`, then serves until killed. A request that breaks a rule of h11 is printed as `FAULT …` and answered 400.
"""
import hashlib
import random
import socket
import sys
import threading
from urllib.parse import parse_qs, urlsplit

import h11


def receive(connection, sock):
    while True:
        event = connection.next_event()
        if event is not h11.NEED_DATA:
            return event
        if connection.they_are_waiting_for_100_continue:
            sock.sendall(connection.send(h11.InformationalResponse(status_code=100, headers=[])))
        connection.receive_data(sock.recv(65536))


def answer(connection, sock, request, body):
    headers = {name: value for name, value in request.headers}
    query = parse_qs(urlsplit(request.target.decode()).query)
    number = lambda name: int(query[name][0])
    want = headers.get(b"x-sum", b"").decode()
    if want != hashlib.sha256(body).hexdigest():
        raise h11.RemoteProtocolError(f"checksum of {request.target!r}: {len(body)} bytes came")
    rng = random.Random(number("seed"))
    reply = rng.randbytes(number("size"))
    status = number("status")
    fields = [("X-Sum", hashlib.sha256(reply).hexdigest())]
    if status not in (204, 304):
        fields.append(("Transfer-Encoding", "chunked") if number("chunked") else ("Content-Length", str(len(reply))))
    for _ in range(number("interim")):
        sock.sendall(connection.send(h11.InformationalResponse(status_code=103, headers=[("Link", "</a>")])))
    sock.sendall(connection.send(h11.Response(status_code=status, headers=fields)))
    if request.method != b"HEAD" and status not in (204, 304):
        at = 0
        while at < len(reply):
            size = rng.choice([1, 10, 1000, 10_000, 100_000])
            sock.sendall(connection.send(h11.Data(reply[at : at + size])))
            at += size
    trailers = [("X-Trailer", "t")] if number("chunked") and status == 200 and request.method != b"HEAD" else []
    sock.sendall(connection.send(h11.EndOfMessage(headers=trailers)))


def serve(sock):
    connection = h11.Connection(h11.SERVER)
    try:
        while True:
            request = receive(connection, sock)
            if not isinstance(request, h11.Request):
                return
            body = bytearray()
            while True:
                event = receive(connection, sock)
                if isinstance(event, h11.EndOfMessage):
                    break
                if not isinstance(event, h11.Data):
                    return
                body += event.data
            answer(connection, sock, request, bytes(body))
            if connection.our_state is h11.MUST_CLOSE:
                return
            connection.start_next_cycle()
    except h11.RemoteProtocolError as fault:
        print("FAULT", fault)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    except OSError:
        pass
    finally:
        sock.close()


listener = socket.create_server(("127.0.0.1", 0), backlog=100)
print("port", listener.getsockname()[1])
sys.stdout.flush()
while True:
    accepted, _ = listener.accept()
    threading.Thread(target=serve, args=(accepted,), daemon=True).start()
