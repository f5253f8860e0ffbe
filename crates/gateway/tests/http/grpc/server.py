"""A gRPC server whose messages are plain bytes. Arguments: the port to listen on; for TLS the files of key and certificate."""
import sys
import time
from concurrent import futures

import grpc


def unary(request, context):
    # One write: calls run side by side, and `print` writes each of its parts by itself.
    sys.stdout.write(f"unary {len(request)}\n")
    sys.stdout.flush()
    fields = dict(context.invocation_metadata())
    if "x-fail" in fields:
        context.set_trailing_metadata((("x-why", "as asked"),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no: 50% näh")
    if "x-sleep" in fields:
        time.sleep(float(fields["x-sleep"]))
    context.send_initial_metadata((("x-first", "1"),))
    context.set_trailing_metadata((("x-last", "2"), ("x-bytes-bin", b"\x00\xff")))
    return request


def server_stream(request, context):
    for index in range(int(request)):
        yield b"%d" % index


def failing_stream(request, context):
    yield b"first"
    context.abort(grpc.StatusCode.OUT_OF_RANGE, "enough")


def client_stream(requests, context):
    return b"%d" % sum(len(request) for request in requests)


def both_stream(requests, context):
    for request in requests:
        yield request


handlers = {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "Server": grpc.unary_stream_rpc_method_handler(server_stream),
    "Fails": grpc.unary_stream_rpc_method_handler(failing_stream),
    "Client": grpc.stream_unary_rpc_method_handler(client_stream),
    "Both": grpc.stream_stream_rpc_method_handler(both_stream),
}
options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 1)]
server = grpc.server(futures.ThreadPoolExecutor(max_workers=32), options=options)
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
address = "127.0.0.1:" + sys.argv[1]
if len(sys.argv) > 2:
    key, certificate = (open(file, "rb").read() for file in sys.argv[2:4])
    assert server.add_secure_port(address, grpc.ssl_server_credentials([(key, certificate)])) != 0
else:
    assert server.add_insecure_port(address) != 0
server.start()
print("listening")
server.wait_for_termination()
