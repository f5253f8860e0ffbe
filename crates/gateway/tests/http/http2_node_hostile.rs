//! Nodes that agree on HTTP/2 and then break its rules, or flood us: the request fails, and nothing else.

use crate::hostile_node::ClientResult::{BadGateway, Cut, Whole};
use crate::hostile_node::{Bench, begin};
use stillgate_testkit::http2::{END_HEADERS, END_STREAM, Http2, code, encode_fields, encode_frame, kind};
use stillgate_testkit::payload;

#[test]
fn what_is_not_a_frame_ends_the_connection() {
    Bench::new("").check(
        true,
        &[
            ("another protocol", &[BadGateway], |peer, _| {
                peer.send_bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            }),
            ("noise", &[BadGateway], |peer, _| peer.send_bytes(&[&[0xff; 9], &payload(3, 100_000)[..]].concat())),
            ("zeroes without a stream", &[BadGateway], |peer, _| peer.send_bytes(&[0; 10_000])),
            ("too large", &[BadGateway], |peer, stream| peer.send(kind::DATA, 0, stream, &[0; 16 * 1024 + 1])),
            ("far too large", &[BadGateway], |peer, stream| peer.send(kind::HEADERS, 4, stream, &[0; 1_000_000])),
            ("too large amid a body", &[BadGateway, Cut], |peer, stream| {
                begin(peer, stream);
                peer.send(kind::DATA, 0, stream, &[0; 16 * 1024 + 1]);
            }),
            ("PING of 7 bytes", &[BadGateway], |peer, _| peer.send(kind::PING, 0, 0, &[0; 7])),
            ("SETTINGS of 5 bytes", &[BadGateway], |peer, _| peer.send(kind::SETTINGS, 0, 0, &[0; 5])),
            ("SETTINGS with ACK and content", &[BadGateway], |peer, _| peer.send(kind::SETTINGS, 1, 0, &[0; 6])),
            ("WINDOW_UPDATE of 3 bytes", &[BadGateway], |peer, _| peer.send(kind::WINDOW_UPDATE, 0, 0, &[0; 3])),
            ("RST_STREAM of no stream", &[BadGateway], |peer, _| peer.send(kind::RST_STREAM, 0, 0, &[0; 4])),
            ("GOAWAY of a stream", &[BadGateway], |peer, stream| peer.send(kind::GOAWAY, 0, stream, &[0; 8])),
            ("DATA of no stream", &[BadGateway], |peer, _| peer.send(kind::DATA, 0, 0, b"a")),
            ("DATA with more padding than content", &[BadGateway, Cut], |peer, stream| {
                begin(peer, stream);
                peer.send(kind::DATA, 8, stream, &[200, 1]);
            }),
        ],
    );
}

#[test]
fn what_is_against_the_rules_of_a_connection_ends_it() {
    Bench::new("").check(
        true,
        &[
            ("a window beyond 2^31-1", &[BadGateway], |peer, _| {
                peer.send(kind::WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes());
            }),
            ("a window opened by nothing", &[BadGateway], |peer, _| peer.send(kind::WINDOW_UPDATE, 0, 0, &[0; 4])),
            ("an initial window beyond 2^31-1", &[BadGateway], |peer, _| {
                peer.send(kind::SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]);
            }),
            ("frames of no size", &[BadGateway], |peer, _| peer.send(kind::SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 0])),
            ("a push", &[BadGateway], |peer, stream| {
                let fields = encode_fields(&[(":method", "GET"), (":scheme", "http"), (":path", "/")]);
                let promised = [&2_u32.to_be_bytes()[..], &fields].concat();
                peer.send(kind::PUSH_PROMISE, END_HEADERS, stream, &promised);
            }),
            ("a stream of its own", &[BadGateway], |peer, _| peer.send_head(2, &[(":status", "200")], END_STREAM)),
            ("a stream that is not open", &[BadGateway], |peer, _| peer.send_head(99, &[(":status", "200")], 0)),
            ("the reset of one", &[BadGateway], |peer, _| peer.send(kind::RST_STREAM, 0, 99, &[0; 4])),
            ("DATA of one", &[BadGateway], |peer, _| peer.send(kind::DATA, 0, 99, b"a")),
            ("CONTINUATION of nothing", &[BadGateway], |peer, stream| {
                peer.send(kind::CONTINUATION, END_HEADERS, stream, &encode_fields(&[(":status", "200")]));
            }),
            ("a frame amid a field section", &[BadGateway], |peer, stream| {
                peer.send(kind::HEADERS, 0, stream, &encode_fields(&[(":status", "200")]));
                peer.send(kind::PING, 0, 0, &[0; 8]);
            }),
            ("a field section that cannot be decoded", &[BadGateway], |peer, stream| {
                peer.send(kind::HEADERS, END_HEADERS, stream, &[0x88, 0xff, 0xff, 0xff, 0xff, 0xff]);
            }),
            ("an entry that the table does not have", &[BadGateway], |peer, stream| {
                peer.send(kind::HEADERS, END_HEADERS, stream, &[0x88, 0xfe]);
            }),
        ],
    );
}

#[test]
fn floods_end_the_connection() {
    Bench::new(", timeout: {read: 120s}").check(
        true,
        &[
            ("PING", &[BadGateway], |peer, _| {
                peer.send_bytes(&encode_frame(kind::PING, 0, 0, &[7; 8]).repeat(100_000))
            }),
            ("SETTINGS", &[BadGateway], |peer, _| {
                peer.send_bytes(&encode_frame(kind::SETTINGS, 0, 0, &[]).repeat(100_000))
            }),
            ("SETTINGS that resize the table", &[BadGateway], |peer, _| {
                let frame = |size| encode_frame(kind::SETTINGS, 0, 0, &[0, 1, 0, 0, size, 0]);
                peer.send_bytes(&[frame(0), frame(16)].concat().repeat(50_000));
            }),
            ("PRIORITY", &[BadGateway], |peer, _| {
                peer.send_bytes(&encode_frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 0, 1]).repeat(100_000));
            }),
            ("unknown frames", &[BadGateway], |peer, _| {
                peer.send_bytes(&encode_frame(0xee, 0, 0, &[]).repeat(100_000))
            }),
            ("RST_STREAM", &[BadGateway], |peer, stream| {
                peer.send_bytes(
                    &encode_frame(kind::RST_STREAM, 0, stream, &code::CANCEL.to_be_bytes()).repeat(100_000),
                );
            }),
            ("GOAWAY", &[BadGateway], |peer, _| {
                let last = [&0x7fff_ffff_u32.to_be_bytes()[..], &[0; 4]].concat();
                peer.send_bytes(&encode_frame(kind::GOAWAY, 0, 0, &last).repeat(100_000));
            }),
            ("windows", &[BadGateway, Cut], |peer, stream| {
                begin(peer, stream);
                peer.send_bytes(&encode_frame(kind::WINDOW_UPDATE, 0, stream, &[0, 0, 0, 1]).repeat(100_000));
            }),
            ("empty DATA", &[BadGateway, Cut], |peer, stream| {
                begin(peer, stream);
                peer.send_bytes(&encode_frame(kind::DATA, 0, stream, &[]).repeat(100_000));
            }),
            ("CONTINUATION without end", &[BadGateway], |peer, stream| {
                peer.send(kind::HEADERS, 0, stream, &encode_fields(&[(":status", "200")]));
                peer.send_bytes(
                    &encode_frame(kind::CONTINUATION, 0, stream, &encode_fields(&[("x", "y")])).repeat(100_000),
                );
            }),
            ("empty CONTINUATION without end", &[BadGateway], |peer, stream| {
                peer.send(kind::HEADERS, 0, stream, &encode_fields(&[(":status", "200")]));
                peer.send_bytes(&encode_frame(kind::CONTINUATION, 0, stream, &[]).repeat(100_000));
            }),
            ("a byte for four kilobytes", &[BadGateway], |peer, stream| {
                let mut bomb = encode_fields(&[(":status", "200")]);
                bomb.push(0x40);
                bomb.extend_from_slice(&encode_fields(&[("x", &"y".repeat(3_900))])[1..]);
                bomb.extend(std::iter::repeat_n(0xbe, 10_000));
                peer.send(kind::HEADERS, END_HEADERS, stream, &bomb);
            }),
        ],
    );
}

/// A response of three bytes.
fn head(peer: &mut Http2, stream: u32, fields: &[(&str, &str)]) {
    peer.send_head(stream, fields, 0);
    peer.send(kind::DATA, END_STREAM, stream, b"abc");
}

/// Each of these is one stream's fault.
#[test]
fn malformed_heads_fail_their_request() {
    Bench::new(", timeout: {read: 120s}").check(
        false,
        &[
            ("DATA before HEADERS", &[BadGateway], |peer, stream| peer.send(kind::DATA, END_STREAM, stream, b"abc")),
            ("no status", &[BadGateway], |peer, stream| head(peer, stream, &[("a", "b")])),
            ("nothing", &[BadGateway], |peer, stream| head(peer, stream, &[])),
            ("a switch of protocols", &[BadGateway], |peer, stream| head(peer, stream, &[(":status", "101")])),
            ("status 0", &[BadGateway], |peer, stream| head(peer, stream, &[(":status", "0")])),
            ("status 099", &[BadGateway], |peer, stream| head(peer, stream, &[(":status", "099")])),
            ("status 999", &[Whole], |peer, stream| head(peer, stream, &[(":status", "999")])),
            ("status 2000", &[BadGateway], |peer, stream| head(peer, stream, &[(":status", "2000")])),
            ("status abc", &[BadGateway], |peer, stream| head(peer, stream, &[(":status", "abc")])),
            ("two statuses", &[BadGateway], |peer, stream| {
                head(peer, stream, &[(":status", "200"), (":status", "404")])
            }),
            ("a late status", &[BadGateway], |peer, stream| head(peer, stream, &[("a", "b"), (":status", "200")])),
            ("a request's path", &[BadGateway], |peer, stream| {
                head(peer, stream, &[(":status", "200"), (":path", "/")])
            }),
            ("a path alone", &[BadGateway], |peer, stream| head(peer, stream, &[(":path", "/")])),
            ("an unknown pseudo field", &[BadGateway], |peer, stream| {
                head(peer, stream, &[(":status", "200"), (":a", "b")])
            }),
            ("upper case", &[BadGateway], |peer, stream| head(peer, stream, &[(":status", "200"), ("A", "b")])),
            ("a split", &[BadGateway], |peer, stream| head(peer, stream, &[(":status", "200"), ("a", "b\r\nc: d")])),
            ("NUL", &[BadGateway], |peer, stream| head(peer, stream, &[(":status", "200"), ("a", "b\0")])),
            ("connection", &[BadGateway], |peer, stream| {
                head(peer, stream, &[(":status", "200"), ("connection", "close")])
            }),
            ("chunks", &[BadGateway], |peer, stream| {
                head(peer, stream, &[(":status", "200"), ("transfer-encoding", "chunked")]);
            }),
            ("too many fields", &[BadGateway], |peer, stream| {
                head(peer, stream, &[&[(":status", "200")][..], &[("a", "b"); 200]].concat());
            }),
        ],
    );
}

#[test]
fn bodies_that_are_not_as_told_fail_their_request() {
    Bench::new("").check(
        false,
        &[
            ("no length", &[BadGateway], |peer, stream| {
                head(peer, stream, &[(":status", "200"), ("content-length", "x")])
            }),
            ("a signed length", &[BadGateway], |peer, stream| {
                head(peer, stream, &[(":status", "200"), ("content-length", "+3")]);
            }),
            ("two lengths", &[BadGateway], |peer, stream| {
                head(peer, stream, &[(":status", "200"), ("content-length", "3"), ("content-length", "4")]);
            }),
            ("less than told", &[BadGateway, Cut], |peer, stream| {
                head(peer, stream, &[(":status", "200"), ("content-length", "4")]);
            }),
            ("nothing of what was told", &[BadGateway, Cut], |peer, stream| {
                peer.send_head(stream, &[(":status", "200"), ("content-length", "4")], END_STREAM);
            }),
            ("more than told", &[BadGateway, Cut], |peer, stream| {
                head(peer, stream, &[(":status", "200"), ("content-length", "2")]);
            }),
            ("less than told, and trailers", &[BadGateway, Cut], |peer, stream| {
                peer.send_head(stream, &[(":status", "200"), ("content-length", "4")], 0);
                peer.send(kind::DATA, 0, stream, b"abc");
                peer.send_head(stream, &[("a", "b")], END_STREAM);
            }),
            ("two heads", &[BadGateway, Cut], |peer, stream| {
                begin(peer, stream);
                peer.send_head(stream, &[(":status", "200")], 0);
                peer.send(kind::DATA, END_STREAM, stream, b"end");
            }),
            ("two heads, the second the end", &[BadGateway, Cut], |peer, stream| {
                begin(peer, stream);
                peer.send_head(stream, &[(":status", "200")], END_STREAM);
            }),
            ("trailers with a path, in several frames", &[BadGateway, Cut], |peer, stream| {
                begin(peer, stream);
                peer.send(kind::HEADERS, END_STREAM, stream, &encode_fields(&[("a", "b")]));
                peer.send(kind::CONTINUATION, END_HEADERS, stream, &encode_fields(&[(":path", "/")]));
            }),
            ("interim responses without end", &[BadGateway], |peer, stream| {
                for _ in 0..200 {
                    peer.send_head(stream, &[(":status", "103"), ("link", "</a>")], 0);
                }
            }),
            ("an interim one that ends the stream", &[BadGateway], |peer, stream| {
                peer.send_head(stream, &[(":status", "103")], END_STREAM);
            }),
        ],
    );
}
