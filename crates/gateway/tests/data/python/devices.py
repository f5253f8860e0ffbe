"""Devices and back-ends of a gateway: a scenario, the gateway's port, the port of its device API."""
import asyncio, functools, http.client, json, os, sys, time, urllib.error, urllib.parse, urllib.request
import websockets

# Only what fails takes so long: each side may get a hundredth of a core.
PATIENCE = 180
websockets.connect = functools.partial(websockets.connect, open_timeout=PATIENCE, ping_timeout=None)

SCENARIO, GATEWAY, API = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
MORE = sys.argv[4:]
JSON = {"Content-Type": "application/json"}


def ask(method, path, body=None, headers=None, at=API):
    """Status, headers and body of an answer of the device API at a port."""
    headers = dict(headers or {})
    request = urllib.request.Request(f"http://127.0.0.1:{at}{path}", data=body, method=method, headers=headers)
    if body is not None and "Content-Type" not in headers:
        request.add_header("Content-Type", "application/octet-stream")
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


async def api(method, path, body=None, headers=None, at=API):
    return await asyncio.get_running_loop().run_in_executor(None, ask, method, path, body, headers, at)


def path_of(device):
    return "/v1/devices/" + urllib.parse.quote(device, safe="")


async def send(device, body=b'{"on":true}', query="", headers=None, at=API):
    headers = {**JSON, **(headers or {})}
    return await api("POST", f"{path_of(device)}/messages{query}", body, headers, at)


def url(device, further="", at=GATEWAY):
    return f"ws://127.0.0.1:{at}/connect?device={urllib.parse.quote(device, safe='')}{further}"


async def connect(device, further="", protocols=("stillgate.v1",), at=GATEWAY, **more):
    return await websockets.connect(
        url(device, further, at), subprotocols=list(protocols) or None, ping_interval=None, max_size=1 << 24, **more
    )


async def by_header(device):
    to = f"ws://127.0.0.1:{GATEWAY}/by-header"
    return await websockets.connect(to, subprotocols=["stillgate.v1"], extra_headers={"X-Device": device})


async def hear(device):
    return json.loads(await asyncio.wait_for(device.recv(), PATIENCE))


async def greeted(device):
    hello = await hear(device)
    assert hello["type"] == "hello" and hello["resume"].startswith(hello["session"] + "."), hello
    return hello


async def say(device, **words):
    await device.send(json.dumps(words))


async def ended(device, code):
    try:
        while True:
            await asyncio.wait_for(device.recv(), PATIENCE)
    except websockets.ConnectionClosed as closed:
        assert closed.rcvd is not None and closed.rcvd.code == code, (closed, code)
        return closed.rcvd.reason


async def eventually(what, holds):
    until = time.monotonic() + PATIENCE
    while not await holds():
        assert time.monotonic() < until, what
        await asyncio.sleep(0.02)


async def is_offline(device):
    return not json.loads((await api("GET", path_of(device)))[2]).get("online")


def expect(answer, status, *parts):
    assert answer[0] == status, (answer[0], status, answer[2])
    for part in parts:
        assert part in answer[2].decode(), (part, answer[2])
    return answer


async def messages():
    expect(await send("lamp"), 404, "has not been seen")
    lamp = await connect("lamp", "&model=m1")
    assert lamp.subprotocol == "stillgate.v1"
    await greeted(lamp)
    answer = expect(await send("lamp"), 202, '"written"')
    message = await hear(lamp)
    assert message == {"type": "message", "id": answer[1]["X-Message-Id"], "seq": 1, "body": {"on": True}}, message
    # Any JSON is embedded as it is, to the byte; text is a string, anything else base64.
    task = asyncio.create_task(send("lamp", b' {"a":1.0e2,\t"b" : [1, 2]} ', "?ack=device"))
    raw = await asyncio.wait_for(lamp.recv(), PATIENCE)
    assert raw.endswith('"body":{"a":1.0e2,\t"b" : [1, 2]}}'), raw
    await say(lamp, type="ack", seq=json.loads(raw)["seq"])
    expect(await task, 200, '"acknowledged"')
    await send("lamp", "grüß".encode(), headers={"Content-Type": "text/plain; charset=utf-8"})
    assert (await hear(lamp))["body"] == "grüß"
    await send("lamp", b"\x00\xff", headers={"Content-Type": "image/png"})
    message = await hear(lamp)
    assert (message["body"], message["encoding"]) == ("AP8=", "base64"), message
    # A reply is the answer.
    task = asyncio.create_task(send("lamp", query="?ack=reply&timeout=180s"))
    message = await hear(lamp)
    await say(lamp, type="ack", seq=message["seq"])
    await say(lamp, type="reply", id=message["id"], body={"state": ["on"]})
    answer = expect(await task, 200)
    assert (answer[1]["Content-Type"], json.loads(answer[2])) == ("application/json", {"state": ["on"]})
    # Nothing in time.
    expect(await send("lamp", query="?ack=device&timeout=2s"), 504, '"delivered":"unknown"')
    await hear(lamp)
    # What cannot be sent.
    expect(await send("lamp", b"{"), 400, "not JSON")
    expect(await send("lamp", b"1" * (64 * 1024 + 1)), 413, "65536")
    # The longest that may be fits into an empty queue, as base64, too.
    longest = b'"' + b"x" * (64 * 1024 - 2) + b'"'
    expect(await send("lamp", longest), 202)
    assert len((await hear(lamp))["body"]) == len(longest) - 2
    expect(await send("lamp", longest, headers={"Content-Type": "image/png"}), 202)
    assert len((await hear(lamp))["body"]) > len(longest)
    expect(await send("lamp", query="?ack=maybe"), 400, "written, device or reply")
    expect(await send("lamp", query="?timeout=9h"), 400, "timeout=9h")
    expect(await send("lamp", query="?later=1"), 400, "unknown argument")
    expect(await send("x" * 1024), 404)
    expect(await api("POST", "/v1/devices/%ff/messages", b"1", JSON), 400, "UTF-8")
    # Many at once, each to its own answer.
    tasks = [asyncio.create_task(send("lamp", str(n).encode(), "?ack=reply&timeout=180s")) for n in range(30)]
    for _ in range(30):
        message = await hear(lamp)
        await say(lamp, type="reply", id=message["id"], body=message["body"] * 2)
    assert sorted([int((await task)[2]) for task in tasks]) == [2 * n for n in range(30)]
    # An id may be anything that text is.
    for strange in ["a/b", "..", "%41", "a b", "grüß", "x" * 256, "a?b#c"]:
        device = await by_header(strange)
        await greeted(device)
        expect(await send(strange), 202)
        assert (await hear(device))["body"] == {"on": True}
        await device.close()
    for bad in ["x" * 257, "", "a\tb"]:
        try:
            await by_header(bad)
        except websockets.InvalidStatusCode as refusal:
            assert refusal.status_code == 400, refusal
    # It goes.
    await lamp.close()
    await eventually("the end to be known", lambda: is_offline("lamp"))
    expect(await send("lamp"), 410, "last_seen")


async def refused(device, status, **more):
    try:
        await connect(device, **more)
    except websockets.InvalidStatusCode as refusal:
        assert refusal.status_code == status, refusal
        return refusal.headers
    raise AssertionError(f"{device} was let in")


async def idempotency():
    lamp = await connect("lamp")
    await greeted(lamp)
    key = {"Idempotency-Key": "order-1"}
    task = asyncio.create_task(send("lamp", query="?ack=reply", headers=key))
    message = await hear(lamp)
    again = asyncio.create_task(send("lamp", query="?ack=reply", headers=key))
    await asyncio.sleep(0.2)
    await say(lamp, type="reply", id=message["id"], body="yes")
    answers = [await task, await again, await send("lamp", query="?ack=reply", headers=key)]
    # The same answer, with the id that the device has seen.
    for answer in answers:
        expect(answer, 200, '"yes"')
        assert answer[1]["X-Message-Id"] == message["id"], (answer[1]["X-Message-Id"], message)
    expect(await send("lamp", b'{"on":false}', "?ack=reply", key), 422, "another body")
    # The device has got it once.
    await send("lamp", b'"last"')
    assert (await hear(lamp))["body"] == "last"
    # What was not delivered may be sent again, and what was is known although the device is gone.
    await lamp.close()
    await eventually("the end to be known", lambda: is_offline("lamp"))
    expect(await send("lamp", query="?ack=reply", headers=key), 200, '"yes"')
    other = {"Idempotency-Key": "order-2"}
    expect(await send("lamp", headers=other), 410)
    lamp = await connect("lamp")
    await greeted(lamp)
    expect(await send("lamp", headers=other), 202)
    expect(await send("lamp", headers={"Idempotency-Key": ""}), 400, "Idempotency-Key")


async def stalled(device):
    """A device that reads nothing: the kernel's buffers are filled, then what is sent waits in the gateway."""
    import socket
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", GATEWAY))
    lines = [
        f"GET /connect?device={device} HTTP/1.1", "Host: a", "Connection: Upgrade", "Upgrade: websocket",
        "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", "",
    ]
    raw.sendall("\r\n".join(lines).encode())
    head = b""
    while b"\r\n\r\n" not in head:
        head += raw.recv(1)
    assert b" 101 " in head and b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head, head
    return raw


async def fill(device):
    """Sends until nothing is written any more, several times in a row: one may be late on a busy machine."""
    late = 0
    for _ in range(8000):
        answer = await send(device, b'"' + b"x" * 1900 + b'"', "?timeout=100ms")
        late = late + 1 if answer[0] != 202 else 0
        if late == 5:
            break
    return answer


async def queue_refuses():
    raw = await stalled("slow")
    answer = await fill("slow")
    # What is not written in time is withdrawn, and makes room; more than fits is refused.
    assert answer[0] == 504, answer
    again = await asyncio.gather(*[send("slow", b'"' + b"y" * 1900 + b'"', "?timeout=5s") for _ in range(8)])
    full = [answer for answer in again if answer[0] == 429]
    assert len(full) >= 6 and all(int(answer[1]["Retry-After"]) >= 1 for answer in full), again
    raw.close()


async def queue_keeps_the_latest():
    raw = await stalled("slow")
    await fill("slow")
    tasks = [asyncio.create_task(send("slow", str(n).encode(), "?key=t&timeout=6s")) for n in range(5)]
    answers = sorted([(await task)[0] for task in tasks])
    assert answers[:4] == [409] * 4, answers
    raw.close()


async def resume():
    first = await connect("lamp")
    hello = await greeted(first)
    tasks = [asyncio.create_task(send("lamp", str(n).encode(), "?ack=device&timeout=180s")) for n in range(3)]
    seen = [await hear(first) for _ in range(3)]
    await say(first, type="ack", seq=1)
    await eventually("the first answer", lambda: asyncio.sleep(0, any(task.done() for task in tasks)))
    # Its network goes.
    first.transport.abort()
    await eventually("the end to be known", lambda: is_offline("lamp"))
    second = await connect("lamp")
    await greeted(second)
    await say(second, type="hello", session=hello["session"], resume=hello["resume"])
    resumed = await greeted(second)
    assert resumed["session"] == hello["session"] and resumed["resume"] != hello["resume"], resumed
    again = [await hear(second) for _ in range(2)]
    assert again == seen[1:], (again, seen)
    await say(second, type="ack", seq=3)
    assert [(await task)[0] for task in tasks] == [200] * 3
    # The old token is worth nothing any more; a device that has none gets a session of its own.
    third = await connect("lamp")
    fresh = await greeted(third)
    await say(third, type="hello", session=hello["session"], resume=hello["resume"])
    assert (await greeted(third))["session"] == fresh["session"] != hello["session"]
    # Back before the old connection has ended: it is resumed all the same.
    token = await greeted(await connect("other"))
    task = asyncio.create_task(send("other", b"7", "?ack=device&timeout=180s"))
    await asyncio.sleep(0.2)
    other = await connect("other")
    await greeted(other)
    await say(other, type="hello", session=token["session"], resume=token["resume"])
    assert (await greeted(other))["session"] == token["session"]
    message = await hear(other)
    assert message["body"] == 7, message
    await say(other, type="ack", seq=message["seq"])
    expect(await task, 200)
    # One that does not come back to what it was sent.
    task = asyncio.create_task(send("other", b"8", "?ack=device&timeout=180s"))
    await hear(other)
    other.transport.abort()
    other = await connect("other")
    await greeted(other)
    await say(other, type="hello")
    await greeted(other)
    expect(await task, 504, '"delivered":"unknown"')


async def replaced():
    for n in range(20):
        first = await connect("lamp")
        await greeted(first)
        second = await connect("lamp")
        await greeted(second)
        assert "replaced" in await ended(first, 1008)
        expect(await send("lamp", str(n).encode()), 202)
        assert (await hear(second))["body"] == n
        await second.close()
    # Two that fight: one is there in the end, and it gets what is sent.
    sockets = await asyncio.gather(*[connect("fight") for _ in range(20)])

    async def is_alone():
        return sum(not socket.closed for socket in sockets) == 1

    for socket in sockets:
        asyncio.create_task(socket.wait_closed())
    await eventually("one to be left", is_alone)
    left = next(socket for socket in sockets if not socket.closed)
    await greeted(left)
    expect(await send("fight"), 202)
    await hear(left)


async def refused_second():
    first = await connect("lamp")
    await greeted(first)
    await refused("lamp", 409)
    expect(await send("lamp"), 202)
    await hear(first)
    await first.close()
    await eventually("the end to be known", lambda: is_offline("lamp"))
    await greeted(await connect("lamp"))


async def left_open():
    await greeted(await connect("lamp"))
    expect(await send("lamp"), 202)


async def cbor():
    device = await connect("c", protocols=("other", "stillgate.v1+cbor", "stillgate.v1"))
    assert device.subprotocol == "stillgate.v1+cbor"
    hello = await asyncio.wait_for(device.recv(), PATIENCE)
    assert isinstance(hello, bytes) and hello[0] == 0xA3 and b"resume" in hello, hello
    task = asyncio.create_task(send("c", b'{"on":true}', "?ack=reply"))
    message = await asyncio.wait_for(device.recv(), PATIENCE)
    assert message.endswith(b"\x64body\xa1\x62on\xf5"), message
    at = message.index(b"\x62id\x78\x20") + 5
    await device.send(b"\xa3\x64type\x65reply\x62id\x78\x20" + message[at:at + 32] + b"\x64body\x82\x01\xf6")
    assert json.loads((await task)[2]) == [1, None]
    await refused("c2", 400, protocols=("other",))
    # Text where CBOR is spoken.
    await device.send("{}")
    assert "CBOR" in await ended(device, 1003)


async def raw():
    device = await connect("r", protocols=("mine",))
    assert device.subprotocol == "mine"
    expect(await send("r", b"[1]"), 202)
    assert await asyncio.wait_for(device.recv(), PATIENCE) == "[1]"
    await send("r", b"\x01", headers={"Content-Type": "application/octet-stream"})
    assert await asyncio.wait_for(device.recv(), PATIENCE) == b"\x01"
    await send("r", b"", headers={"Content-Type": "text/plain"})
    assert await asyncio.wait_for(device.recv(), PATIENCE) == ""
    expect(await send("r", query="?ack=device"), 400, "acknowledgements")
    expect(await send("r", query="?ack=reply"), 400, "acknowledgements")
    await device.send("anything")
    await asyncio.wait_for(await device.ping(), PATIENCE)
    await device.close()


async def presence():
    import http.client
    listener = http.client.HTTPConnection("127.0.0.1", API, timeout=PATIENCE)
    listener.request("GET", "/v1/device-events?prefix=a")
    stream = listener.getresponse()
    assert stream.headers["Content-Type"] == "text/event-stream"
    assert stream.readline().startswith(b":") and stream.readline() == b"\n"
    devices = {}
    for name in ["a1", "a2", "a3", "b1"]:
        devices[name] = await connect(name, "&model=m-" + name)
        await greeted(devices[name])

    def happened():
        lines = []
        while not lines or lines[-1] != b"\n":
            lines.append(stream.readline())
        return lines[0].decode().strip(), json.loads(lines[1][len(b"data: "):])

    for name in ["a1", "a2", "a3"]:
        kind, data = happened()
        assert (kind, data["id"], data["route"]) == ("event: connect", name, "devices"), (kind, data)
    shown = json.loads(expect(await api("GET", path_of("a1")), 200)[2])
    assert shown["online"] and shown["node"] == "a" and shown["labels"] == {"model": "m-a1"}, shown
    assert shown["protocol"] == "json" and shown["queue_bytes"] == 0 and shown["since"].endswith("Z"), shown
    listed = json.loads((await api("GET", "/v1/devices?prefix=a&page_size=2"))[2])
    assert [device["id"] for device in listed["devices"]] == ["a1", "a2"] and listed["connected"] == 4, listed
    listed = json.loads((await api("GET", "/v1/devices?prefix=a&page_size=2&page=" + listed["next_page"]))[2])
    assert [device["id"] for device in listed["devices"]] == ["a3"] and "next_page" not in listed, listed
    await send("b1", b'"' + b"x" * 5000 + b'"')
    await hear(devices["b1"])
    top = json.loads(expect(await api("GET", "/v1/device-stats/top"), 200)[2])["devices"]
    assert top[0]["id"] == "b1" and top[0]["bytes"] > 5000 and len(top) == 4, top
    expect(await api("DELETE", path_of("a2") + "/connection"), 202)
    assert "back-end" in await ended(devices["a2"], 1000)
    kind, data = happened()
    assert (kind, data["id"], data["reason"]) == ("event: disconnect", "a2", "asked"), (kind, data)
    await eventually("the end to be known", lambda: is_offline("a2"))
    expect(await api("DELETE", path_of("a2") + "/connection"), 410)
    expect(await api("DELETE", path_of("a9") + "/connection"), 404)
    listed = json.loads((await api("GET", "/v1/devices?online=false"))[2])
    assert [(device["id"], device["online"]) for device in listed["devices"]] == [("a2", False)], listed
    expect(await api("GET", path_of("a9")), 404)
    expect(await api("PUT", path_of("a1")), 405)
    expect(await api("GET", "/v2"), 404, "openapi")
    described = json.loads(expect(await api("GET", "/v1/openapi.json"), 200)[2])
    assert "post" in described["paths"]["/v1/devices/{id}/messages"], described
    listener.close()


async def broadcast():
    names = [f"{kind}{n:04}" for kind in "ab" for n in range(150)]
    protocols = lambda n: ("stillgate.v1+cbor",) if n % 3 == 0 else ("stillgate.v1",)
    devices = await asyncio.gather(
        *[connect(name, f"&model=m{n % 2}", protocols(n)) for n, name in enumerate(names)]
    )
    for device in devices:
        await asyncio.wait_for(device.recv(), PATIENCE)

    async def job(match, body):
        asked = json.dumps({"match": match, "body": body}).encode()
        answer = expect(await api("POST", "/v1/broadcast", asked, JSON), 202)
        where, last = answer[1]["Location"], {}

        async def is_done():
            last.update(json.loads((await api("GET", where))[2]))
            return last["state"] == "done"

        await eventually("the job to be done", is_done)
        return last

    counts = await job({}, "all")
    assert (counts["matched"], counts["written"]) == (300, 300), counts
    for device in devices:
        assert (b"all" in m if isinstance(m := await asyncio.wait_for(device.recv(), PATIENCE), bytes) else "all" in m)
    counts = await job({"prefix": "a", "label": {"model": "m1"}}, {"x": 1})
    assert (counts["matched"], counts["written"]) == (75, 75), counts
    counts = await job({"prefix": "c"}, 1)
    assert counts["matched"] == 0, counts
    for n, (name, device) in enumerate(zip(names, devices)):
        if name[0] == "a" and n % 2 == 1:
            await asyncio.wait_for(device.recv(), PATIENCE)
    expect(await api("POST", "/v1/broadcast", b'{"match":{"prfix":"a"},"body":1}', JSON), 400, "prfix")
    expect(await api("GET", "/v1/broadcast/77"), 404)


async def silent():
    raw = await stalled("silent")
    began = time.monotonic()
    lively = await connect("lively")
    await greeted(lively)
    asked = time.monotonic()
    await is_offline("lively")
    lag = time.monotonic() - asked
    await eventually("the silent one to be found", lambda: is_offline("silent"))
    assert time.monotonic() - began < 20 + 20 * lag
    assert not await is_offline("lively")
    expect(await send("lively"), 202)
    assert (await hear(lively))["body"] == {"on": True}
    raw.close()


async def full():
    first = await connect("d1")
    await greeted(first)
    await greeted(await connect("d2"))
    headers = await refused("d3", 503)
    assert int(headers["Retry-After"]) >= 1, headers
    # One that is there already may come anew.
    await greeted(await connect("d2"))
    await first.close()
    await eventually("the end to be known", lambda: is_offline("d1"))
    await greeted(await connect("d3"))


async def too_fast():
    async def come(n):
        try:
            return 101, (await connect(f"d{n}")).response_headers
        except websockets.InvalidStatusCode as refusal:
            return refusal.status_code, refusal.headers

    began = time.monotonic()
    answers = await asyncio.gather(*[come(n) for n in range(40)])
    took = time.monotonic() - began
    late = [headers for status, headers in answers if status == 503]
    # One more for each second that it took.
    assert len(late) + took >= 20 and all(int(headers["Retry-After"]) >= 1 for headers in late), (took, answers)
    assert any(status == 101 for status, _ in answers)


async def events():
    lamp = await connect("lamp")
    await greeted(lamp)
    for n in range(5):
        await say(lamp, type="event", body={"n": n})
    await lamp.close()


async def comes_back():
    """A device that leaves more events behind than may wait, again and again."""
    for _ in range(20):
        lamp = await connect("lamp")
        await greeted(lamp)
        for n in range(50):
            await say(lamp, type="event", body=n)
        await lamp.close()


async def sends_many():
    lamp = await connect("lamp")
    await greeted(lamp)
    for n in range(int(MORE[0])):
        await say(lamp, type="event", body=n)
    await lamp.close()


async def hangs():
    """More devices than may post at once to an upstream that hangs."""
    devices = await asyncio.gather(*[connect(f"d{n}") for n in range(200)])
    for device in devices:
        await greeted(device)
    print("connected", flush=True)
    while not os.path.exists(MORE[0]):
        await asyncio.sleep(0.02)
    last = await connect("last")
    await greeted(last)
    expect(await send("last"), 202)
    assert (await hear(last))["body"] == {"on": True}


async def waits_for_the_upstream():
    """Devices with events that the upstream does not take: pings go on, and so does what the gateway learns from them."""
    living, silent, gone = [await connect(name) for name in ("living", "silent", "gone")]
    for device in (living, silent, gone):
        await greeted(device)
        for n in range(3):
            await say(device, type="event", body=n)
    silent.transport.pause_reading()
    gone.transport.abort()
    await eventually("the one that is gone", lambda: is_offline("gone"))
    await eventually("the one that does not answer pings", lambda: is_offline("silent"))
    # A few intervals of pings.
    await asyncio.sleep(5)
    assert not await is_offline("living") and living.open
    expect(await send("living"), 202)
    assert (await hear(living))["body"] == {"on": True}
    await living.close()
    await eventually("the close", lambda: is_offline("living"))


async def held():
    lamp = await connect("lamp")
    await greeted(lamp)
    began = time.monotonic()
    task = asyncio.create_task(send("lamp", query="?ack=device&timeout=180s"))
    message = await hear(lamp)
    await say(lamp, type="event", body="what was done")
    await say(lamp, type="ack", seq=message["seq"])
    expect(await task, 200)
    # Four answers of 503 came first, each with a pause behind it.
    assert time.monotonic() - began > 0.2, "it was not held"
    await lamp.close()


async def revoked():
    url_of = lambda key: f"ws://127.0.0.1:{GATEWAY}/connect?apikey={key}"
    come = lambda key: websockets.connect(url_of(key), subprotocols=["stillgate.v1"], ping_interval=None)
    lamp, door = await come("of-lamp"), await come("of-door")
    await greeted(lamp)
    await greeted(door)
    print("connected", flush=True)
    assert "credential" in await ended(lamp, 1008)
    expect(await send("door"), 202)
    assert (await hear(door))["body"] == {"on": True}
    try:
        await come("of-lamp")
    except websockets.InvalidStatusCode as refusal:
        assert refusal.status_code == 401, refusal


async def token_ends():
    import base64, hashlib, hmac
    part = lambda data: base64.urlsafe_b64encode(json.dumps(data).encode()).rstrip(b"=")
    signed = part({"alg": "HS256", "typ": "JWT"}) + b"." + part({"key": "lamp", "exp": int(time.time()) + 8})
    digest = hmac.new(b"a-secret-of-some-length", signed, hashlib.sha256).digest()
    token = (signed + b"." + base64.urlsafe_b64encode(digest).rstrip(b"=")).decode()
    lamp = await websockets.connect(f"ws://127.0.0.1:{GATEWAY}/connect?jwt={token}", ping_interval=None)
    await greeted(lamp)
    expect(await send("lamp"), 202)
    began = time.monotonic()
    assert "credential" in await ended(lamp, 1008)
    assert time.monotonic() - began < 60


async def told():
    lamp = await connect("a-device-that-is-no-label")
    await greeted(lamp)
    for _ in range(3):
        await send("a-device-that-is-no-label", b'"' + b"x" * 200 + b'"')
        last = await hear(lamp)
    await say(lamp, type="ack", seq=last["seq"])
    await asyncio.sleep(0.6)
    await lamp.close()


async def upgraded():
    """Devices that must notice nothing, and a back-end that sends to them all the time."""
    names = [f"d{n}" for n in range(200)]
    devices = await asyncio.gather(*[connect(name) for name in names])
    got = {name: [] for name in names}

    async def live(name, device):
        await greeted(device)
        while True:
            message = await hear(device) if False else json.loads(await device.recv())
            assert message["type"] == "message", message
            got[name].append((message["seq"], message["body"]))
            await say(device, type="ack", seq=message["seq"])

    tasks = [asyncio.create_task(live(name, device)) for name, device in zip(names, devices)]
    sent = {name: 0 for name in names}
    is_over, refused = False, []

    def kept(connection, path, body, headers):
        """Over a connection that is kept, as back-ends do; only one that was closed in order is made again."""
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()

    async def sender(of):
        mine, at = names[of::4], 0
        connection = http.client.HTTPConnection("127.0.0.1", API, timeout=PATIENCE)
        while not is_over:
            name = mine[at % len(mine)]
            at += 1
            body = sent[name]
            while True:
                headers = {"Idempotency-Key": f"{name}-{body}", **JSON}
                path = path_of(name) + "/messages?ack=device&timeout=120s"
                answer = await asyncio.to_thread(kept, connection, path, str(body).encode(), headers)
                if answer[0] == 503:
                    refused.append(answer)
                    await asyncio.sleep(0.02)
                    continue
                assert answer[0] == 200, (name, body, answer[0], answer[2])
                break
            sent[name] += 1

    senders = [asyncio.create_task(sender(of)) for of in range(4)]
    for turn in range(3):
        before = sum(sent.values())
        while sum(sent.values()) < before + 300:
            for task in [*tasks, *senders]:
                if task.done():
                    task.result()
            await asyncio.sleep(0.02)
        print("round", turn, flush=True)
        await asyncio.sleep(3)
    before = sum(sent.values())
    while sum(sent.values()) < before + 400:
        for task in [*tasks, *senders]:
            if task.done():
                task.result()
        await asyncio.sleep(0.02)
    is_over = True
    await asyncio.gather(*senders)
    assert not (refused and "alone" in MORE), refused[:3]
    print("asks", flush=True)
    for name in names:
        seqs, bodies = [seq for seq, _ in got[name]], [body for _, body in got[name]]
        assert seqs == sorted(set(seqs)), (name, seqs)
        assert sorted(set(bodies)) == list(range(sent[name])), (name, bodies, sent[name])
    assert all(not device.closed for device in devices)
    for task in tasks:
        task.cancel()


def masked(opcode, payload, final=True, mask=b"\x01\x02\x03\x04", bits=0):
    head = bytes([(0x80 if final else 0) | bits | opcode])
    size = len(payload)
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 65536:
        head += bytes([0x80 | 126]) + size.to_bytes(2, "big")
    else:
        head += bytes([0x80 | 127]) + size.to_bytes(8, "big")
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


async def closes_with(raw, code):
    """Reads to the close frame that the gateway ends the connection with."""
    raw.settimeout(PATIENCE)
    data = b""
    while True:
        more = await asyncio.get_running_loop().run_in_executor(None, raw.recv, 65536)
        if not more:
            break
        data += more
    at, last = 0, None
    while at < len(data):
        size, begin = data[at + 1], at + 2
        if size == 126:
            size, begin = int.from_bytes(data[at + 2:at + 4], "big"), at + 4
        last = (data[at] & 15, data[begin:begin + size])
        at = begin + size
    assert last is not None and last[0] == 8, data[-200:]
    assert int.from_bytes(last[1][:2], "big") == code, (last, code)
    raw.close()


async def bad_frames():
    hello = b'{"type":"hello"}'
    big = 64 * 1024 * 4 // 3 + 2000
    for name, data, code in [
        ("unmasked", b"\x81\x02{}", 1002),
        ("reserved bits", masked(1, hello, bits=0x40), 1002),
        ("reserved opcode", masked(3, b""), 1002),
        ("reserved control", masked(11, b""), 1002),
        ("fragmented ping", masked(9, b"", final=False), 1002),
        ("long ping", masked(9, b"x" * 126), 1002),
        ("continuation of nothing", masked(0, b"x"), 1002),
        ("message in message", masked(1, b"{", final=False) + masked(1, b"}"), 1002),
        ("long length", b"\x81\xfe\x00\x02\0\0\0\0{}", 1002),
        ("huge length", b"\x81\xff" + b"\xff" * 8 + b"\0\0\0\0", 1002),
        ("too big", masked(1, b"x" * big), 1009),
        ("too big in pieces", b"".join(masked(1 if n == 0 else 0, b"x" * 1000, False) for n in range(100)), 1009),
        ("bad text", masked(1, b"\xff\xfe"), 1007),
        ("text cut in a character", masked(1, b'"\xe2\x82'), 1007),
        ("close of one byte", masked(8, b"\x03"), 1002),
        ("close code", masked(8, (1005).to_bytes(2, "big")), 1002),
        ("close reason", masked(8, (1000).to_bytes(2, "big") + b"\xff"), 1007),
        ("close", masked(8, (4321).to_bytes(2, "big") + b"mine"), 4321),
    ]:
        for size in [1, 1 << 20]:
            raw = await stalled("bad")
            try:
                for at in range(0, min(len(data), 4000), size):
                    raw.sendall(data[at:at + size])
                raw.sendall(data[4000:] if size == 1 and len(data) > 4000 else b"")
            except ConnectionError:
                pass
            try:
                await closes_with(raw, code)
            except ConnectionResetError:
                # What was sent behind the end resets it.
                assert "too big" in name, name
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}")
    # A whole message byte by byte, pings between its pieces.
    raw = await stalled("slow-writer")
    data = masked(1, b'{"type":', False) + masked(9, b"hi") + masked(0, b'"hello"}')
    for at in range(len(data)):
        raw.sendall(data[at:at + 1])
    raw.settimeout(PATIENCE)
    got = b""
    while got.count(b'"type":"hello"') < 2 or b"\x8a\x02hi" not in got:
        got += raw.recv(4096)
    raw.close()


async def unfinished():
    """Messages that do not end: more of them than the node may hold, and one for longer than it may last."""
    slow = await connect("slow")
    await greeted(slow)
    await slow.write_frame(False, 1, b'{"type":')
    devices = [await connect(f"d{n}") for n in range(20)]
    for device in devices:
        await greeted(device)
        await device.write_frame(False, 1, b'"' + b"x" * 60_000)

    async def turned_away():
        return sum(device.closed for device in devices) >= 3

    await eventually("those beyond 1 MiB to be turned away", turned_away)
    assert [device.close_code for device in devices if device.closed] == [1013] * 3, devices
    if MORE[0] == "patient":
        assert "not finished" in await ended(slow, 1008)
    else:
        await slow.write_frame(True, 0, b'"event","body":1}')
        expect(await send("slow"), 202)
        assert (await hear(slow))["body"] == {"on": True}


async def bad_messages():
    for text, part in [
        ("{", "not JSON"),
        ("[]", "one object"),
        ("{}", "type"),
        ('{"type":"other"}', "other"),
        ('{"type":"ack","seq":99}', "never sent"),
        ('{"type":"ack","seq":1.5}', "whole number"),
        ('{"type":"ack"}', "seq"),
        ('{"type":"event","body":1,"x":2}', "unknown key"),
        ('{"type":"event","body":1,"body":2}', "twice"),
        ('{"type":"event","body":' + "[" * 65 + "]" * 65 + "}", "nested"),
    ]:
        device = await connect("bad")
        await greeted(device)
        await device.send(text)
        assert part in await ended(device, 1008), text
    device = await connect("bad")
    await greeted(device)
    await device.send(b"{}")
    await ended(device, 1003)
    # A reply to nothing is nobody's, and no fault: its sender may have gone.
    await greeted(device := await connect("good"))
    await say(device, type="reply", id="0" * 32, body=1)
    await say(device, type="event", body="dropped: nobody wants it")
    expect(await send("good"), 202)
    assert (await hear(device))["body"] == {"on": True}


async def bad_handshakes():
    def request(*lines):
        import socket
        raw = socket.create_connection(("127.0.0.1", GATEWAY), timeout=PATIENCE)
        raw.sendall("\r\n".join([*lines, "Host: a", "Connection: Upgrade, close", "", ""]).encode("latin-1"))
        data = b""
        while more := raw.recv(65536):
            data += more
            if b"\r\n\r\n" in data and b"error_msg" in data:
                break
        return data

    get, version = "GET /connect?device=a HTTP/1.1", "Sec-WebSocket-Version: 13"
    key, ask_for = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Upgrade: websocket"
    assert b" 400 " in request(get)
    assert b" 400 " in request(get, ask_for, version)
    assert b" 400 " in request(get, ask_for, version, "Sec-WebSocket-Key: short")
    assert b" 400 " in request(get.replace("GET", "PUT"), ask_for, version, key)
    answer = request(get, ask_for, key, "Sec-WebSocket-Version: 8")
    assert b" 426 " in answer and b"Sec-WebSocket-Version: 13" in answer, answer
    assert b" 400 " in request("GET /connect?device=%ff HTTP/1.1".replace("%ff", ""), ask_for, version, key)
    assert b" 400 " in request(get, ask_for, version, key, "Content-Length: 3", "Expect: 100-continue")


async def slow_ones():
    slow = [await stalled(f"slow{n}") for n in range(20)]
    lively = await connect("lively")
    await greeted(lively)
    for raw in slow:
        # It never reads, and asks to be answered.
        for _ in range(300):
            raw.sendall(masked(9, b"p" * 100))
    flood = [asyncio.create_task(send(f"slow{n % 20}", b'"' + b"x" * 30000 + b'"', "?timeout=1s")) for n in range(100)]
    for n in range(50):
        task = asyncio.create_task(send("lively", str(n).encode(), "?ack=device"))
        message = await hear(lively)
        await say(lively, type="ack", seq=message["seq"])
        expect(await task, 200)
    statuses = {(await task)[0] for task in flood}
    assert statuses <= {202, 429, 504}, statuses
    # A million tiny messages would be no other.
    raw = await stalled("tiny")
    one = masked(1, b'{"type":"ack","seq":0}')
    for _ in range(100):
        raw.sendall(one * 200)
    expect(await send("lively"), 202)
    await hear(lively)


async def listeners_come_and_go():
    """A listener that leaves frees its place, even while only devices outside its prefix come and go."""
    lamp = await connect("lamp")
    for _ in range(2):
        gone = []
        for _ in range(64):
            listener = http.client.HTTPConnection("127.0.0.1", API, timeout=PATIENCE)
            listener.request("GET", "/v1/device-events?prefix=nobody")
            assert listener.getresponse().readline().startswith(b":")
            gone.append(listener)
        assert (await api("GET", "/v1/device-events"))[0] == 503
        for listener in gone:
            listener.close()

        async def is_free():
            await (await connect("other")).close()
            listener = http.client.HTTPConnection("127.0.0.1", API, timeout=PATIENCE)
            listener.request("GET", "/v1/device-events")
            status = listener.getresponse().status
            listener.close()
            return status == 200

        await eventually("a place to be free", is_free)
        await asyncio.sleep(0.5)


async def broken_bodies():
    """Bodies that end too early or are malformed: the sender is told, and no message is sent."""
    lamp = await connect("lamp")
    await greeted(lamp)
    for fields, body in [
        ("Transfer-Encoding: chunked", b"zz\r\n"),
        ("Transfer-Encoding: chunked", b"5\r\n{\"on\"\r\n"),
        ("Content-Length: 50", b"{}"),
    ]:
        reader, writer = await asyncio.open_connection("127.0.0.1", API)
        head = f"POST {path_of('lamp')}/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{fields}\r\n\r\n"
        writer.write(head.encode() + body)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        assert answer.startswith(b"HTTP/1.1 400 ") and b"connection: close" in answer.lower(), (fields, answer)
        writer.close()
    # A body whose declared length is far too long is not waited for.
    reader, writer = await asyncio.open_connection("127.0.0.1", API)
    writer.write(f"POST {path_of('lamp')}/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), PATIENCE)
    assert answer.startswith(b"HTTP/1.1 413 ") and b"connection: close" in answer.lower(), answer
    await send("lamp", b'"last"')
    assert (await hear(lamp))["body"] == "last"


async def silent_at_the_end():
    """A device that never reads again, and a sender that waits for it."""
    request = (
        "GET /connect?device=lamp HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: stillgate.v1\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", GATEWAY)
    writer.write(request.encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    task = asyncio.create_task(send("lamp", query="?ack=reply&timeout=60s"))
    # The message is there, and from here on the device is silent.
    await asyncio.wait_for(reader.readuntil(b'"type":"message"'), PATIENCE)
    print("waiting", flush=True)
    expect(await task, 504, '"delivered":"unknown"')
    writer.transport.abort()


async def keys():
    lamp = await connect("lamp")
    await greeted(lamp)
    expect(await api("GET", "/v1/devices?api_key=k2"), 200, "lamp")
    expect(await api("GET", "/v1/devices?%61pi_key=wrong", headers={"X-API-KEY": "k2"}), 401)
    expect(await send("lamp"), 401)
    expect(await send("lamp", headers={"X-API-KEY": "wrong"}), 401)
    expect(await send("lamp", headers={"X-API-KEY": "k2"}), 401)
    expect(await send("lamp", headers={"X-API-KEY": "k1"}), 202)
    expect(await api("GET", "/v1/devices"), 401)
    expect(await api("GET", "/v1/devices", headers={"X-API-KEY": "k2"}), 200, "lamp")
    expect(await api("DELETE", path_of("lamp") + "/connection", headers={"X-API-KEY": "k2"}), 401)


async def flood():
    """One device, far more requests than it takes."""
    import http.client, threading
    lamp = await connect("lamp")
    await greeted(lamp)
    statuses, lock = {}, threading.Lock()

    def back_end(of):
        connection = http.client.HTTPConnection("127.0.0.1", API, timeout=600)
        for _ in range(100):
            connection.request("POST", path_of("lamp") + "/messages?ack=device&timeout=120s", b"1", JSON)
            answer = connection.getresponse()
            answer.read()
            with lock:
                statuses[answer.status] = statuses.get(answer.status, 0) + 1

    loop = asyncio.get_running_loop()
    ends = [asyncio.create_task(asyncio.to_thread(back_end, of)) for of in range(16)]
    while not all(end.done() for end in ends):
        try:
            message = json.loads(await asyncio.wait_for(lamp.recv(), 0.2))
        except asyncio.TimeoutError:
            continue
        await say(lamp, type="ack", seq=message["seq"])
    await asyncio.gather(*ends)
    assert statuses == {200: 1600}, statuses


SCENARIOS = {"refused": refused_second}


async def play():
    await SCENARIOS.get(SCENARIO, globals().get(SCENARIO))()
    print("done", flush=True)
    # Connections that are open would each be closed politely.
    os._exit(0)


asyncio.run(play())
