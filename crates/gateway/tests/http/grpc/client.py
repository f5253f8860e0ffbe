"""Calls a gRPC server through a gateway in all four ways, and checks what comes. Arguments: its address, what to check."""
import queue
import sys
import time

import grpc

options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
channel = grpc.insecure_channel(sys.argv[1], options=options)
unary = channel.unary_unary("/test.Echo/Unary")
# Only a call that fails takes so long.
TIME = 600


def code_of(call):
    try:
        call()
        return None, None
    except grpc.RpcError as error:
        return error.code(), error.details()


def unary_calls():
    for size in [0, 1, 1000, 4 * 1024 * 1024]:
        message = bytes(size)
        response, call = unary.with_call(message, timeout=TIME)
        assert response == message, (size, len(response))
        assert dict(call.initial_metadata())["x-first"] == "1"
        trailing = dict(call.trailing_metadata())
        assert (trailing["x-last"], trailing["x-bytes-bin"]) == ("2", b"\x00\xff"), trailing


def streams():
    got = list(channel.unary_stream("/test.Echo/Server")(b"100", timeout=TIME))
    assert got == [b"%d" % index for index in range(100)], got
    assert channel.stream_unary("/test.Echo/Client")(iter([bytes(70_000)] * 20), timeout=TIME) == b"1400000"
    waiting = queue.Queue()
    answers = channel.stream_stream("/test.Echo/Both")(iter(waiting.get, None), timeout=TIME)
    # Each is answered before the next is sent.
    for index in range(50):
        waiting.put(b"%d" % index)
        assert next(answers) == b"%d" % index
    waiting.put(None)
    assert list(answers) == []


def errors():
    try:
        unary(b"x", metadata=(("x-fail", "1"),), timeout=TIME)
        raise AssertionError("no error")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.FAILED_PRECONDITION, error
        assert error.details() == "no: 50% näh", error.details()
        assert dict(error.trailing_metadata())["x-why"] == "as asked"
    code, _ = code_of(lambda: channel.unary_unary("/test.Echo/Nothing")(b"", timeout=TIME))
    assert code == grpc.StatusCode.UNIMPLEMENTED, code


def no_route():
    code, details = code_of(lambda: unary(b"x", timeout=TIME))
    assert (code, details) == (grpc.StatusCode.UNIMPLEMENTED, "Route Not Found"), (code, details)


def no_node():
    code, details = code_of(lambda: unary(b"x", timeout=TIME))
    assert code == grpc.StatusCode.UNAVAILABLE and "node" in details, (code, details)


def many():
    calls = [unary.future(b"%d" % index, timeout=TIME) for index in range(300)]
    assert [call.result() for call in calls] == [b"%d" % index for index in range(300)]


def cancel():
    call = unary.future(b"x", metadata=(("x-sleep", "30"),))
    time.sleep(0.3)
    call.cancel()
    assert unary(b"y", timeout=TIME) == b"y"


globals()[sys.argv[2]]()
print("good")
