# Behind devices.py. MORE has the gateway's pid file.
import collections, re

NUMBERED = re.compile(rb"broadcast-(\d+)\.")


def serving():
    """The process that serves."""
    return open(MORE[0]).read().strip()


async def replaced_by_another(before):
    async def is_another():
        return serving() not in ("", before)

    await eventually("another process to serve", is_another)


def cbor_ack(seq):
    number = bytes([seq]) if seq < 24 else bytes([0x18, seq])
    return b"\xa2\x64type\x63ack\x63seq" + number


class Device:
    """Acknowledges what it gets, and counts it."""

    def __init__(self, name, connection):
        self.name, self.connection, self.got = name, connection, collections.Counter()

    async def live(self):
        count = 0
        async for message in self.connection:
            is_text = isinstance(message, str)
            found = NUMBERED.search(message.encode() if is_text else message)
            if not found:
                continue
            self.got[int(found[1])] += 1
            count += 1
            await (say(self.connection, type="ack", seq=count) if is_text else self.connection.send(cbor_ack(count)))


async def fleet(count):
    """So many devices, each third of which speaks CBOR."""
    protocols = lambda n: ("stillgate.v1+cbor",) if n % 3 == 0 else ("stillgate.v1",)
    devices = []
    for begin in range(0, count, 50):
        numbers = range(begin, min(count, begin + 50))
        connections = await asyncio.gather(*[connect(f"d{n:04}", protocols=protocols(n)) for n in numbers])
        devices += [Device(f"d{n:04}", connection) for n, connection in zip(numbers, connections)]
    return devices, [asyncio.create_task(device.live()) for device in devices]


def begun(answer):
    assert answer[0] == 202, answer
    return json.loads(answer[2])["id"]


async def counts_of(job, what, is_it):
    """The counts of a job, once they are so."""
    last = {}

    async def look():
        answer = await api("GET", f"/v1/broadcast/{job}")
        last["counts"] = expect(answer, 200) and json.loads(answer[2])
        return is_it(last["counts"])

    try:
        await eventually(what, look)
    except AssertionError:
        raise AssertionError((what, last))
    return last["counts"]


def is_done(counts):
    return counts["state"] == "done"


def all_written(counts, count):
    assert (counts["matched"], counts["written"]) == (count, count), counts
    assert counts["offline"] == counts["queue_full"] == counts["timed_out"] == 0, counts


async def has_all(devices, tasks, jobs):
    async def is_there():
        for task in tasks:
            if task.done():
                task.result()
                raise AssertionError("a device has been disconnected")
        return all(len(device.got) == jobs for device in devices)

    await eventually("all devices to have all of it", is_there)
    # What would come twice has come by then.
    await asyncio.sleep(0.5)
    for device in devices:
        assert device.got == {number: 1 for number in range(jobs)}, (device.name, device.got)
        assert not device.connection.closed, device.name


async def broadcast_upgraded():
    """Back-ends broadcast all the time, over connections that they keep and over others, while a process takes over."""
    devices, tasks = await fleet(400)
    # Somebody waits for its acknowledgement all the time: it is the last to go.
    slow = await connect("slow")
    await greeted(slow)
    waiting = asyncio.create_task(send("slow", b'"wait"', "?ack=device&timeout=5m"))
    message = await hear(slow)
    assert message["body"] == "wait", message
    first, jobs, is_over, refused = serving(), [], False, []

    def over(connection, body):
        connection.request("POST", "/v1/broadcast", body, JSON)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()

    async def back_end():
        kept = http.client.HTTPConnection("127.0.0.1", API, timeout=600)
        # A process remembers a hundred jobs.
        while not is_over and len(jobs) < 90:
            body = json.dumps({"match": {"prefix": "d"}, "body": f"broadcast-{len(jobs)}."}).encode()
            if len(jobs) % 2:
                answer = await api("POST", "/v1/broadcast", body, JSON)
            else:
                answer = await asyncio.to_thread(over, kept, body)
            if answer[0] in (429, 503):
                refused.append(answer)
                await asyncio.sleep(0.1)
                continue
            jobs.append(begun(answer))
            await asyncio.sleep(0.1)

    sending = asyncio.create_task(back_end())
    await asyncio.sleep(0.5)
    print("upgrade", flush=True)
    await replaced_by_another(first)
    await asyncio.sleep(1)
    assert not waiting.done(), waiting
    await say(slow, type="ack", seq=message["seq"])
    expect(await waiting, 200)
    # With that it goes, too, and does not wait for something to wake its connection.
    again = asyncio.create_task(send("slow", b'"again"', "?ack=device&timeout=180s"))
    message = await hear(slow)
    assert message["body"] == "again", message
    await say(slow, type="ack", seq=message["seq"])
    expect(await again, 200)
    await asyncio.sleep(1)
    is_over = True
    await sending
    assert len(jobs) >= 10, jobs
    assert all(answer[0] == 429 for answer in refused), refused
    for job in jobs:
        all_written(await counts_of(job, "a job to be done", is_done), len(devices))
    await has_all(devices, tasks, len(jobs))
    expect(await api("GET", "/v1/broadcast/77"), 404)


async def stuck(name):
    """A device in the middle of a frame: it stays with the process that it is connected to."""
    device = Device(name, await connect(name))
    await greeted(device.connection)
    device.connection.transport.write(b"\x89")
    # Longer than the gateway takes to read it.
    await asyncio.sleep(1.5)
    return device


def go_on(device):
    """The rest of the frame, a ping."""
    device.connection.transport.write(b"\x80\x01\x02\x03\x04")


async def broadcast_late():
    """One device comes to the process that has taken over when all others have the message."""
    devices, tasks = await fleet(100)
    late, before = await stuck("d9999"), serving()
    print("upgrade", flush=True)
    await replaced_by_another(before)
    job = begun(await api("POST", "/v1/broadcast", b'{"body": "broadcast-0."}', JSON))
    all_written(await counts_of(job, "the job to be done", is_done), len(devices))
    await has_all(devices, tasks, 1)
    tasks.append(asyncio.create_task(late.live()))
    go_on(late)
    await counts_of(job, "the last one to be counted", lambda counts: counts["matched"] > len(devices))
    all_written(await counts_of(job, "the job to be done", is_done), len(devices) + 1)
    await has_all([*devices, late], tasks, 1)


async def broadcast_held():
    """A process is followed while it waits with a broadcast for what the one before it may give still."""
    devices, tasks = await fleet(600)
    late, before = await stuck("d9999"), serving()
    print("first", flush=True)
    await replaced_by_another(before)
    second = serving()
    job = begun(await api("POST", "/v1/broadcast", b'{"body": "broadcast-0."}', JSON))
    print("second", flush=True)
    await replaced_by_another(second)
    all_written(await counts_of(job, "the job to be done", is_done), len(devices))
    await has_all(devices, tasks, 1)
    # Through the second process, which has left, to the third.
    lives = asyncio.create_task(late.live())
    go_on(late)
    await counts_of(job, "the last one to be counted", lambda counts: counts["matched"] > len(devices))
    counts = await counts_of(job, "the job to be done", is_done)
    await asyncio.sleep(0.5)
    assert not lives.done() and counts["matched"] == len(devices) + 1, counts
    assert (counts["written"] - len(devices), counts["offline"]) in ((1, 0), (0, 1)), counts
    assert late.got == {0: 1} if counts["offline"] == 0 else not late.got, (late.got, counts)


