# ws_server.py [CERTIFICATE KEY]. A WebSocket server: echoes messages; "close CODE REASON" makes it close so; "ping" makes it ping first.
import asyncio, ssl, sys
try:
    import websockets
except ImportError:
    sys.exit("Python's websockets is missing; install the Debian package python3-websockets")

async def serve(socket, path="/"):
    try:
        async for message in socket:
            if isinstance(message, str) and message.startswith("close "):
                _, code, reason = message.split(" ", 2)
                await socket.close(int(code), reason)
                break
            if message == "ping":
                await asyncio.wait_for(await socket.ping(b"from the server"), 10)
            if message == "fragments":
                await socket.send(part for part in ["frag", "", "ments"])
                continue
            await socket.send(message)
    except websockets.ConnectionClosed:
        pass
    print("closed", socket.close_code, socket.close_reason)

async def main():
    tls = None
    if len(sys.argv) > 1:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(sys.argv[1], sys.argv[2])
    async with websockets.serve(serve, "127.0.0.1", 0, ssl=tls, max_size=None, subprotocols=["chat"]) as server:
        print("port", server.sockets[0].getsockname()[1])
        await asyncio.Future()

asyncio.run(main())
