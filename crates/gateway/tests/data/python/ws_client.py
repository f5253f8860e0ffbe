# ws_client.py PORT [CA NAME]. A WebSocket client that tries everything with an echo server behind 127.0.0.1:PORT.
import asyncio, os, ssl, sys
try:
    import websockets
except ImportError:
    sys.exit("Python's websockets is missing; install the Debian package python3-websockets")

async def connect(**options):
    scheme = "ws"
    if len(sys.argv) > 2:
        scheme = "wss"
        options.update(ssl=ssl.create_default_context(cafile=sys.argv[2]), server_hostname=sys.argv[3])
    at = f"{scheme}://127.0.0.1:{sys.argv[1]}/chat"
    return await websockets.connect(at, max_size=None, open_timeout=180, ping_timeout=None, subprotocols=["chat"], **options)

async def echo(socket, message, expected=None):
    await socket.send(message)
    got = await asyncio.wait_for(socket.recv(), 180)
    assert got == (expected if expected is not None else message), f"{len(message)} bytes came back otherwise"

async def main():
    socket = await connect()
    assert socket.subprotocol == "chat"
    for message in ["", "text", "ä" * 70000, b"", b"\x00\xff" * 100, "ping"]:
        await echo(socket, message)
    await echo(socket, os.urandom(10 * 1024 * 1024))
    # Fragments both ways; the parts are frames of their own.
    await socket.send(part for part in [b"a" * 10, b"", b"b" * 70000])
    assert await socket.recv() == b"a" * 10 + b"b" * 70000
    await echo(socket, "fragments", "fragments")
    for _ in range(3):
        await asyncio.wait_for(await socket.ping(os.urandom(125)), 180)
    await asyncio.gather(*[socket.send(str(number)) for number in range(1000)])
    assert [await socket.recv() for _ in range(1000)] == [str(number) for number in range(1000)]
    await socket.close(4001, "mine")
    assert (socket.close_code, socket.close_reason) == (4001, "mine"), socket.close_code
    for code, reason in [(1000, "bye"), (1001, "away"), (4999, "r" * 100)]:
        socket = await connect(compression=None)
        await echo(socket, "x")
        await socket.send(f"close {code} {reason}")
        try:
            await asyncio.wait_for(socket.recv(), 180)
            assert False, "a message after the end"
        except websockets.ConnectionClosed as closed:
            assert (closed.code, closed.reason) == (code, reason), closed
    print("done")

asyncio.run(main())
