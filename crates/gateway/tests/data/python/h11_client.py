"""A strict HTTP/1.1 client on h11: sends seeded random requests and checks every response's checksum.

Arguments: port, seed, count. Prints `done N` at the end; anything wrong ends it with a traceback and status 1.
"""
import hashlib
import random
import socket
import sys

import h11

PORT, SEED, COUNT = (int(argument) for argument in sys.argv[1:4])
rng = random.Random(SEED)


def any_size():
    return rng.randrange(10 ** rng.randrange(1, 6)) if rng.random() < 0.8 else 0


def receive(connection, sock):
    while True:
        event = connection.next_event()
        if event is not h11.NEED_DATA:
            return event
        connection.receive_data(sock.recv(65536))


def exchange(connection, sock, number):
    method = rng.choice(["GET", "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
    status = rng.choice([200, 200, 200, 200, 201, 204, 304, 404, 500])
    seed, size, chunked, interim = rng.randrange(2**30), any_size(), rng.randrange(2), rng.randrange(8) // 6
    body = rng.randbytes(any_size()) if method in ("POST", "PUT", "PATCH") else b""
    fields = [("Host", "h11.example"), ("X-Sum", hashlib.sha256(body).hexdigest())]
    fields += [(f"X-Noise-{index}", "n" * rng.randrange(80)) for index in range(rng.randrange(20))]
    if body and rng.random() < 0.5:
        fields.append(("Transfer-Encoding", "chunked"))
    elif body or method == "POST":
        fields.append(("Content-Length", str(len(body))))
    last = rng.random() < 0.1
    if last:
        fields.append(("Connection", "close"))
    target = f"/{number}?seed={seed}&size={size}&status={status}&chunked={chunked}&interim={interim}"
    sock.sendall(connection.send(h11.Request(method=method, target=target, headers=fields)))
    at = 0
    while at < len(body):
        step = rng.choice([1, 100, 5000, 70_000])
        sock.sendall(connection.send(h11.Data(body[at : at + step])))
        at += step
    sock.sendall(connection.send(h11.EndOfMessage()))

    hints = 0
    event = receive(connection, sock)
    while isinstance(event, h11.InformationalResponse):
        hints += 1
        event = receive(connection, sock)
    assert isinstance(event, h11.Response), (target, event)
    assert event.status_code == status, (target, event)
    assert hints == interim, (target, hints)
    headers = dict(event.headers)
    reply = bytearray()
    while True:
        event = receive(connection, sock)
        if isinstance(event, h11.EndOfMessage):
            break
        assert isinstance(event, h11.Data), (target, event)
        reply += event.data
    expected = random.Random(seed).randbytes(size)
    assert headers[b"x-sum"].decode() == hashlib.sha256(expected).hexdigest(), target
    if method == "HEAD" or status in (204, 304):
        assert not reply, target
    else:
        assert reply == expected, (target, len(reply), size)
        trailers = [("x-trailer", "t")] if chunked and status == 200 else []
        assert [(n.decode(), v.decode()) for n, v in event.headers] == trailers, (target, event)
    return last


done = 0
while done < COUNT:
    with socket.create_connection(("127.0.0.1", PORT), timeout=180) as sock:
        connection = h11.Connection(h11.CLIENT)
        while done < COUNT:
            last = exchange(connection, sock, done)
            done += 1
            if last:
                assert connection.their_state in (h11.MUST_CLOSE, h11.CLOSED), connection.their_state
                assert sock.recv(1) == b"", "the gateway kept a connection that it should close"
                break
            connection.start_next_cycle()
print("done", done)
