# Behind devices.py. MORE has for each node: its gateway's port, its device API's, that of its metrics and its process.


class Node:
    def __init__(self, text):
        self.gateway, self.api, self.metrics, self.pid = (int(number) for number in text.split(":"))

    async def device(self, name, further=""):
        device = await connect(name, further, at=self.gateway)
        return device, await greeted(device)

    async def send(self, device, query="?ack=device&timeout=120s", body=b'{"on":true}', headers=None):
        return await send(device, body, query, headers, at=self.api)

    async def api_of(self, method, path, body=None, headers=None):
        return await api(method, path, body, headers, at=self.api)

    async def ask_json(self, path):
        return json.loads((await self.api_of("GET", path))[2])

    async def metric(self, name):
        def read():
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=PATIENCE) as answer:
                return answer.read().decode()

        text = await asyncio.to_thread(read)
        lines = [line for line in text.splitlines() if line.startswith(name + " ")]
        assert len(lines) == 1, (name, lines)
        return float(lines[0].split()[1])

    async def awaits(self, metric, value):
        async def holds():
            return await self.metric("stillgate_device_" + metric) == value

        await eventually(f"{metric} {value}", holds)

    async def awaits_some(self, metric):
        async def holds():
            return await self.metric("stillgate_device_" + metric) > 0

        await eventually(f"some {metric}", holds)

    def signal(self, which):
        import signal
        os.kill(self.pid, getattr(signal, which))


NODES = [Node(text) for text in MORE]


async def acknowledge(device):
    """Lives as a device does: acknowledges all, replies with what it got."""
    got = []

    async def live():
        async for text in device:
            message = json.loads(text)
            if message["type"] == "message":
                got.append(message["body"])
                await say(device, type="ack", seq=message["seq"])
                await say(device, type="reply", id=message["id"], body=message["body"])

    asyncio.create_task(live())
    return got


async def closed(device, code):
    await asyncio.wait_for(device.wait_closed(), PATIENCE)
    assert device.close_code == code, device.close_code


async def joined():
    """Every node knows all of them, and no other can come."""
    for node in NODES:
        await node.awaits("nodes", len(NODES))
        await node.awaits("directory_up", 1)


async def until(status, asked):
    """Asks until this is answered; before it, only that nobody can say."""
    began = time.monotonic()
    while True:
        answer = await asked()
        if answer[0] == status:
            return answer, time.monotonic() - began
        assert answer[0] == 503 and time.monotonic() < began + PATIENCE, answer
        await asyncio.sleep(0.02)


async def crossed():
    a, b = NODES
    await joined()
    lamp, _ = await b.device("lamp", "&model=m1")
    got = await acknowledge(lamp)
    expect(await a.send("lamp"), 200, '"acknowledged"')
    expect(await a.send("lamp", "?ack=reply", b'{"n": 1}'), 200, '{"n": 1}')
    expect(await a.send("lamp", "", "grüß".encode(), {"Content-Type": "text/plain"}), 202, '"written"')
    expect(await a.send("lamp", "", b"{"), 400, "not JSON")
    long = b'"' + b"x" * 60_000 + b'"'
    expect(await a.send("lamp", "?ack=reply", long), 200, "x" * 60_000)
    # The key is known where the device is.
    key = {"Idempotency-Key": "k"}
    expect(await a.send("lamp", "?ack=reply", b"2", key), 200)
    expect(await b.send("lamp", "?ack=reply", b"2", key), 200, "2")
    expect(await a.send("lamp", "?ack=reply", b"3", key), 422)
    assert got == [{"on": True}, {"n": 1}, "grüß", "x" * 60_000, 2], got
    await a.awaits("peers_connected", 1)
    # Who is there.
    for node in NODES:
        shown = await node.ask_json(path_of("lamp"))
        assert (shown["node"], shown["online"], shown["labels"]) == ("b", True, {"model": "m1"}), shown
        assert shown["bytes_sent"] > 60_000, shown
    more = {name: (await (a if n % 2 else b).device(name))[0] for n, name in enumerate(["x1", "x2", "x3", "x4"])}
    for node in NODES:
        listed = await node.ask_json("/v1/devices?prefix=x&page_size=3")
        assert [(it["id"], it["node"]) for it in listed["devices"]] == [("x1", "b"), ("x2", "a"), ("x3", "b")], listed
        assert (listed["next_page"], listed["connected"], "missing" in listed) == ("x3", 5, False), listed
        listed = await node.ask_json("/v1/devices?prefix=x&page_size=3&page=x3")
        assert [it["id"] for it in listed["devices"]] == ["x4"] and "next_page" not in listed, listed
    expect(await a.api_of("GET", "/v1/devices?online=false"), 400, "shared directory")
    # All that match, on all nodes.
    job = json.loads(expect(await a.api_of("POST", "/v1/broadcast", b'{"match":{"prefix":"x"},"body":7}', JSON), 202)[2])
    seen = [await hear(device) for device in more.values()]
    assert [it["body"] for it in seen] == [7] * 4 and len({it["id"] for it in seen}) == 1, seen

    for node in NODES:
        async def is_done():
            shown = await node.ask_json(f"/v1/broadcast/{job['id']}")
            assert "missing" not in shown and shown["id"] == job["id"], shown
            return (shown["state"], shown["matched"], shown["written"]) == ("done", 4, 4)

        await eventually("the job to be done", is_done)
        expect(await node.api_of("GET", f"/v1/broadcast/{'0' * 32}"), 404, "no node knows this job")
    # What another node begins is another job, also where it is its first.
    other = json.loads(expect(await b.api_of("POST", "/v1/broadcast", b'{"match":{"prefix":"y"},"body":8}', JSON), 202)[2])
    shown = await a.ask_json(f"/v1/broadcast/{other['id']}")
    assert (shown["id"], shown["matched"]) == (other["id"], 0), shown
    assert (await b.ask_json(f"/v1/broadcast/{job['id']}"))["matched"] == 4
    # A back-end closes a connection of another node.
    expect(await a.api_of("DELETE", path_of("x1") + "/connection"), 202)
    await ended(more["x1"], 1000)
    await until_offline(a, "x1")
    # It moves, and is followed; the old connection is closed on its node.
    moved, _ = await a.device("lamp")
    await acknowledge(moved)
    await closed(lamp, 1008)
    for node in NODES:
        expect(await node.send("lamp"), 200)
        assert (await node.ask_json(path_of("lamp")))["node"] == "a"
    # Where a second connection is refused, it is on every node.
    first = await connect("door", at=b.gateway)
    try:
        to = f"ws://127.0.0.1:{a.gateway}/refused?device=door"
        await websockets.connect(to, subprotocols=["stillgate.v1"])
        raise AssertionError("the second was let in")
    except websockets.InvalidStatusCode as refusal:
        assert refusal.status_code == 409, refusal
    await first.close()
    # It goes.
    await moved.close()
    await until_offline(b, "lamp")
    answer, _ = await until(404, lambda: a.send("nobody"))
    assert "has not been seen" in answer[2].decode()
    commands = await a.metric("stillgate_device_directory_commands_total")
    assert commands > 5, commands


async def until_offline(node, name):
    async def holds():
        shown = await node.ask_json(path_of(name))
        return shown.get("online") is False and shown["last_seen"] is not None

    await eventually(f"{name} to be offline", holds)
    expect(await node.send(name, ""), 410, "last_seen")


async def resumed():
    a, b = NODES
    await joined()
    # Its network goes, and it comes back to another node: it gets again what it has not acknowledged.
    lamp, hello = await b.device("lamp")
    tasks = [asyncio.create_task(a.send("lamp", "?ack=device&timeout=8s", str(n).encode())) for n in range(3)]
    seen = [await hear(lamp) for _ in range(3)]
    await say(lamp, type="ack", seq=1)
    lamp.transport.abort()
    await until_offline(a, "lamp")
    second, _ = await a.device("lamp")
    await say(second, type="hello", session=hello["session"], resume=hello["resume"])
    again = await greeted(second)
    assert again["session"] == hello["session"] and again["resume"] != hello["resume"], again
    messages = [await hear(second) for _ in range(2)]
    assert messages == seen[1:], (messages, seen)
    await say(second, type="ack", seq=3)
    # Their senders had waited at the node that it has left.
    statuses = sorted([(await task)[0] for task in tasks])
    assert statuses == [200, 504, 504], statuses
    # The number goes on, and the old token is worth nothing any more.
    task = asyncio.create_task(b.send("lamp", body=b"9"))
    message = await hear(second)
    assert (message["seq"], message["body"]) == (4, 9), message
    await say(second, type="ack", seq=4)
    expect(await task, 200)
    third, fresh = await b.device("lamp")
    await say(third, type="hello", session=hello["session"], resume=hello["resume"])
    assert (await greeted(third))["session"] == fresh["session"]
    # Back before its old connection has ended.
    door, hello = await a.device("door")
    task = asyncio.create_task(a.send("door", "?timeout=1s", b"7"))
    await hear(door)
    back, _ = await b.device("door")
    await say(back, type="hello", session=hello["session"], resume=hello["resume"])
    assert (await greeted(back))["session"] == hello["session"]
    assert (await hear(back))["body"] == 7
    await task


async def killed():
    a, b = NODES
    await joined()
    (lamp, _), (silent, _) = await b.device("lamp"), await b.device("silent")
    await acknowledge(lamp)
    asked = time.monotonic()
    expect(await a.send("lamp"), 200)
    lag = time.monotonic() - asked
    waits = asyncio.create_task(a.send("silent", "?ack=device&timeout=300s"))
    await hear(silent)
    began = time.monotonic()
    b.signal("SIGKILL")
    expect(await waits, 504, '"delivered":"unknown"')
    assert time.monotonic() - began < 100, "what is on its way does not wait for its time"
    await until(410, lambda: a.send("lamp"))
    took = time.monotonic() - began
    print(f"offline {took:.1f} s after its node was killed", flush=True)
    # What the machine takes for requests comes on top.
    assert 1 < took < 8 + 50 * lag, (took, lag)
    # They come to the other node.
    back, _ = await a.device("lamp")
    await acknowledge(back)
    expect(await a.send("lamp"), 200)
    await a.awaits("nodes", 1)


async def terminated():
    a, b = NODES
    await joined()
    (lamp, _), (other, _) = await b.device("lamp"), await b.device("other")
    expect(await a.send("lamp", ""), 202)
    b.signal("SIGTERM")
    await ended(lamp, 1012)
    # It says so itself: of a lease that ends nobody would know when they were last seen.
    await until_offline(a, "lamp")
    await until_offline(a, "other")
    await a.awaits("nodes", 1)


async def forgotten():
    """The directory is killed, and comes back empty."""
    a, b = NODES
    await joined()
    names = [f"d{n}" for n in range(30)]
    there = {name: (await b.device(name))[0] for name in names}
    for device in there.values():
        await acknowledge(device)
    expect(await a.send("d0"), 200)
    print("kill", flush=True)
    for node in NODES:
        await node.awaits("directory_up", 0)
    # From memory, and by asking the nodes.
    expect(await a.send("d0"), 200)
    expect(await a.send("d1"), 200)
    expect(await a.send("nobody"), 503)
    # New ones come, and are reached.
    new, _ = await b.device("new")
    await acknowledge(new)
    expect(await b.send("new"), 200)
    expect(await a.send("new"), 200)
    # At least the new one: others may be about to be asked for again.
    await b.awaits_some("directory_pending")
    # One moves meanwhile, and one goes.
    moved, _ = await a.device("d2")
    await acknowledge(moved)
    await there["d3"].close()
    print("start", flush=True)
    for node in NODES:
        await node.awaits("directory_up", 1)
        await node.awaits("directory_pending", 0)
    for name in [*names, "new"]:
        if name != "d3":
            expect(await a.send(name), 200)
    # Of two connections of a device the one that was there when the directory came back is the older one.
    await closed(there["d2"], 1008)
    assert (await b.ask_json(path_of("d2")))["node"] == "a"
    await until(404, lambda: a.send("d3"))
    assert not any(device.closed for name, device in there.items() if name not in ("d2", "d3"))


async def stopped():
    """The directory stands still, then a node."""
    a, b = NODES
    await joined()
    (lamp, _), (door, _) = await b.device("lamp"), await b.device("door")
    for device in (lamp, door):
        await acknowledge(device)
    expect(await a.send("lamp"), 200)

    async def slowest():
        began, most = time.monotonic(), 0
        while time.monotonic() < began + 3:
            at = time.monotonic()
            expect(await a.send("lamp"), 200)
            most = max(most, time.monotonic() - at)
        return most

    before = await slowest()
    print("stop", flush=True)
    most = await slowest()
    # On a busy machine a request may be slow, with a directory or without.
    assert most < max(1, 5 * before), (most, before)
    expect(await a.send("door"), 200)
    new, _ = await b.device("new")
    await acknowledge(new)
    print("continue", flush=True)
    for node in NODES:
        await node.awaits("directory_up", 1)
        await node.awaits("directory_pending", 0)
    for name in ("lamp", "door", "new"):
        expect(await a.send(name), 200)
    # A node that hangs: undelivered, or unknown, until its lease ends; then its devices are offline, and online again.
    began = time.monotonic()
    b.signal("SIGSTOP")
    while True:
        answer = await a.send("lamp", "?ack=device&timeout=3s")
        if answer[0] == 410:
            break
        # The signal takes a moment.
        assert answer[0] in (200, 503, 504) and time.monotonic() < began + PATIENCE, answer
    b.signal("SIGCONT")
    began = time.monotonic()
    while (answer := await a.send("lamp"))[0] != 200:
        assert answer[0] in (410, 503, 504) and time.monotonic() < began + PATIENCE, answer
        await asyncio.sleep(0.05)
    for name in ("door", "new"):
        expect(await a.send(name), 200)
    assert not any(device.closed for device in (lamp, door, new))


async def among_three():
    """Two that do not share a certificate's trust do not talk; those that do, do."""
    await joined()
    names = "abc"
    devices = [(await node.device(name))[0] for node, name in zip(NODES, names)]
    for device in devices:
        await acknowledge(device)
    for node in NODES:
        for name in names:
            expect(await node.send(name), 200)
    listed = await NODES[0].ask_json("/v1/devices")
    assert [(it["id"], it["node"]) for it in listed["devices"]] == [(name, name) for name in names], listed
