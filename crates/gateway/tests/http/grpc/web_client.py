"""Calls a gRPC server in gRPC-Web through a gateway, by curl. Arguments: its address, the version of HTTP, what to check."""
import base64
import os
import subprocess
import sys
import tempfile

address, version, what = sys.argv[1:]
WEB, TEXT = "application/grpc-web+proto", "application/grpc-web-text+proto"
FORMS = [(WEB, None), (TEXT, None), (WEB, TEXT), (TEXT, WEB)]
folder = tempfile.mkdtemp()


def post(path, body, content_type, accept=None, fields=()):
    """The status, the fields and the body of the response; curl's exit code where there is no whole one."""
    sent, got, head = (os.path.join(folder, name) for name in ("sent", "got", "head"))
    with open(sent, "wb") as file:
        file.write(body)
    lines = [f"Content-Type: {content_type}", "X-Grpc-Web: 1", *fields]
    if accept:
        lines.append(f"Accept: {accept}")
    command = ["curl", "-sS", "--noproxy", "*", "--max-time", "120", "--data-binary", "@" + sent, "-o", got, "-D", head]
    command += ["--http1.1"] if version == "1.1" else ["--http2-prior-knowledge"]
    for line in lines:
        command += ["-H", line]
    done = subprocess.run([*command, f"http://{address}{path}"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    with open(head, encoding="latin-1") as file:
        heads = file.read().strip().split("\n\n")[-1].replace("\r", "").split("\n")
    # Behind a body of chunks curl writes its trailers too; there must be none.
    fields = [line.split(":", 1) for line in heads[1:]]
    with open(got, "rb") as file:
        return heads[0].split()[1], {name.lower(): value.strip() for name, value in fields}, file.read()


def plain(text):
    """What text stands for that was encoded in parts, each with its padding."""
    assert len(text) % 4 == 0, text[-10:]
    out, start = b"", 0
    while start < len(text):
        end = text.find(b"=", start)
        end = len(text) if end < 0 else end // 4 * 4 + 4
        out += base64.b64decode(text[start:end], validate=True)
        start = end
    return out


def frames(body):
    """The messages and the trailers."""
    messages, trailers = [], None
    while body:
        assert trailers is None, "something behind the trailers"
        flag, length = body[0], int.from_bytes(body[1:5], "big")
        content, body = body[5 : 5 + length], body[5 + length :]
        assert len(content) == length
        if flag == 0x80:
            lines = content.decode("latin-1").split("\r\n")
            assert lines.pop() == ""
            trailers = dict(line.split(": ", 1) for line in lines)
            assert all(name == name.lower() for name in trailers)
        else:
            assert flag == 0, flag
            messages.append(content)
    return messages, trailers


def call(method, message, content_type=WEB, accept=None, fields=()):
    """The response's fields, messages and trailers."""
    body = b"\0" + len(message).to_bytes(4, "big") + message
    if content_type == TEXT:
        # In two texts, so that there is padding within.
        body = base64.b64encode(body[:7]) + base64.b64encode(body[7:])
    status, fields, got = post("/test.Echo/" + method, body, content_type, accept, fields)
    wanted = accept or content_type
    assert (status, fields["content-type"]) == ("200", wanted), (status, fields)
    return fields, *frames(plain(got) if wanted == TEXT else got)


def unary_calls():
    for form in FORMS:
        for size in [0, 1, 2, 1000, 4 * 1024 * 1024]:
            message = os.urandom(size)
            fields, messages, trailers = call("Unary", message, *form)
            assert messages == [message], (size, form, len(messages))
            assert (fields["x-first"], trailers["grpc-status"], trailers["x-last"]) == ("1", "0", "2"), trailers
            assert base64.b64decode(trailers["x-bytes-bin"] + "==") == b"\x00\xff", trailers
            assert "grpc-status" not in fields, fields


def streams():
    for form in FORMS:
        _, messages, trailers = call("Server", b"100", *form)
        assert messages == [b"%d" % index for index in range(100)], messages
        assert trailers["grpc-status"] == "0", trailers


def errors():
    for form in FORMS:
        # Nothing but its end: it is in the head.
        fields, messages, trailers = call("Unary", b"x", *form, fields=["X-Fail: 1"])
        assert (messages, trailers) == ([], None), (messages, trailers)
        assert (fields["grpc-status"], fields["x-why"]) == ("9", "as asked"), fields
        assert fields["grpc-message"].startswith("no: 50%25 n"), fields
        fields, _, _ = call("Nothing", b"", *form)
        assert fields["grpc-status"] == "12", fields
        # After a message.
        fields, messages, trailers = call("Fails", b"x", *form)
        assert messages == [b"first"] and "grpc-status" not in fields, (messages, fields)
        assert (trailers["grpc-status"], trailers["grpc-message"]) == ("11", "enough"), trailers


def gateway_answers(status, text):
    for form in FORMS:
        fields, messages, trailers = call("Unary", b"x", *form)
        assert (messages, trailers, fields["grpc-status"]) == ([], None, status), fields
        assert text in fields["grpc-message"], fields


def no_route():
    gateway_answers("12", "Route Not Found")


def no_node():
    gateway_answers("14", "node")


def bad_base64():
    whole = base64.b64encode(b"\0\0\0\0\1x")
    for body in [b"AAA!", whole[:-1], whole + b"A", b"=" + whole, whole.replace(b"A", b"\n")]:
        _, fields, got = post("/test.Echo/Unary", body, TEXT)
        assert (fields["grpc-status"], got) == ("13", b""), (body, fields)
        assert "base64" in fields["grpc-message"], fields
    unary_calls()


globals()[what]()
print("good")
