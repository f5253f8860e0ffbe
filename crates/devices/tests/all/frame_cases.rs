//! Frames that a client may and may not send, in the groups of the Autobahn test suite; each case whole and byte by byte.

use crate::client::{ReaderEvent, close, frame, read};
use stillgate_devices::frame::FrameError;

const MESSAGE_BYTES_MAX: u32 = 70_000;

/// Frames of a client: opcode with final bit and reserved bits, payload.
fn frames(parts: &[(u8, &[u8])]) -> Vec<u8> {
    parts.iter().flat_map(|(first, payload)| frame(*first, payload)).collect()
}

/// Checks the events of these bytes, in one piece, byte by byte, and in others.
fn check(case: &str, bytes: &[u8], expected: &[ReaderEvent]) {
    for step in [bytes.len().max(1), 1, 2, 3, 997] {
        let pieces: Vec<&[u8]> = bytes.chunks(step).collect();
        assert_eq!(read(MESSAGE_BYTES_MAX, &pieces), expected, "case {case} in steps of {step}");
    }
}

fn text(text: &str) -> ReaderEvent {
    ReaderEvent::Text(text.as_bytes().to_vec())
}

#[test]
fn group_1_messages_of_every_length() {
    for len in [0usize, 1, 125, 126, 127, 128, 65_535, 65_536, 70_000] {
        let payload = vec![b'*'; len];
        check(&format!("1.1, {len}"), &frame(0x81, &payload), &[ReaderEvent::Text(payload.clone())]);
        check(&format!("1.2, {len}"), &frame(0x82, &payload), &[ReaderEvent::Binary(payload.clone())]);
    }
}

#[test]
fn group_2_pings_and_pongs() {
    let long = [0xfe; 125];
    for (case, bytes, expected) in [
        ("2.1", frames(&[(0x89, b"")]), vec![ReaderEvent::Ping(vec![])]),
        ("2.2", frames(&[(0x89, b"Hello")]), vec![ReaderEvent::Ping(b"Hello".to_vec())]),
        ("2.3", frames(&[(0x89, b"\0\xff\xfe")]), vec![ReaderEvent::Ping(b"\0\xff\xfe".to_vec())]),
        ("2.4", frames(&[(0x89, &long)]), vec![ReaderEvent::Ping(long.to_vec())]),
        ("2.5", frames(&[(0x89, &[0xfe; 126])]), vec![ReaderEvent::Error(FrameError::ControlTooLong)]),
        ("2.7", frames(&[(0x8a, b"")]), vec![ReaderEvent::Pong(vec![])]),
        (
            "2.8",
            frames(&[(0x8a, b"unasked"), (0x89, b"p")]),
            vec![ReaderEvent::Pong(b"unasked".to_vec()), ReaderEvent::Ping(b"p".to_vec())],
        ),
    ] {
        check(case, &bytes, &expected);
    }
}

#[test]
fn group_3_reserved_bits() {
    for bits in 1..=7u8 {
        for first in [0x81, 0x82, 0x88, 0x89, 0x8a] {
            let bytes = frames(&[(0x81, b"before"), (first | bits << 4, b"Hello"), (0x89, b"")]);
            check("3", &bytes, &[text("before"), ReaderEvent::Error(FrameError::ReservedBits)]);
        }
    }
}

#[test]
fn group_4_opcodes() {
    for opcode in (3..=7).chain(11..=15u8) {
        let bytes = frames(&[(0x81, b"before"), (0x80 | opcode, b"x"), (0x89, b"")]);
        check("4", &bytes, &[text("before"), ReaderEvent::Error(FrameError::Opcode(opcode))]);
    }
}

#[test]
fn group_5_fragmentation() {
    let ping = || ReaderEvent::Ping(b"ping".to_vec());
    for (case, bytes, expected) in [
        ("5.1", frames(&[(0x09, b"a")]), vec![ReaderEvent::Error(FrameError::ControlFragmented)]),
        ("5.2", frames(&[(0x0a, b"a"), (0x80, b"b")]), vec![ReaderEvent::Error(FrameError::ControlFragmented)]),
        ("5.3", frames(&[(0x01, b"a"), (0x80, b"b")]), vec![text("ab")]),
        ("5.6", frames(&[(0x01, b"a"), (0x89, b"ping"), (0x80, b"b")]), vec![ping(), text("ab")]),
        (
            "5.8 in binary",
            frames(&[(0x02, b"a"), (0x89, b"ping"), (0x00, b"b"), (0x89, b"ping"), (0x80, b"c")]),
            vec![ping(), ping(), ReaderEvent::Binary(b"abc".to_vec())],
        ),
        ("5.9", frames(&[(0x80, b"a"), (0x81, b"b")]), vec![ReaderEvent::Error(FrameError::ContinuationOfNothing)]),
        ("5.12", frames(&[(0x00, b"a"), (0x81, b"b")]), vec![ReaderEvent::Error(FrameError::ContinuationOfNothing)]),
        (
            "5.15",
            frames(&[(0x01, b"a"), (0x80, b"b"), (0x00, b"c")]),
            vec![text("ab"), ReaderEvent::Error(FrameError::ContinuationOfNothing)],
        ),
        ("5.18", frames(&[(0x01, b"a"), (0x81, b"b")]), vec![ReaderEvent::Error(FrameError::MessageInMessage)]),
        ("5.18 empty", frames(&[(0x01, b""), (0x81, b"b")]), vec![ReaderEvent::Error(FrameError::MessageInMessage)]),
        ("empty parts", frames(&[(0x01, b""), (0x00, b""), (0x80, b"")]), vec![text("")]),
        ("close inside a message", frames(&[(0x01, b"a"), (0x88, b""), (0x80, b"b")]), vec![ReaderEvent::Close(None)]),
    ] {
        check(case, &bytes, &expected);
    }
}

#[test]
fn group_6_utf8() {
    let kosme = "κόσμε";
    let invalid = || vec![ReaderEvent::Error(FrameError::InvalidUtf8)];
    check("6.1", &frames(&[(0x01, b""), (0x00, b""), (0x80, b"")]), &[text("")]);
    check("6.2.1", &frames(&[(0x81, "Hello-µ@ßöäüàá-UTF-8!!".as_bytes())]), &[text("Hello-µ@ßöäüàá-UTF-8!!")]);
    let mut bytes: Vec<u8> = vec![];
    for (index, byte) in kosme.bytes().enumerate() {
        bytes.extend(frame(if index == 0 { 0x01 } else { 0x00 }, &[byte]));
    }
    bytes.extend(frame(0x80, b""));
    check("6.2.3", &bytes, &[text(kosme)]);
    for (case, payload) in [
        ("6.3.1", &b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited"[..]),
        ("6.6 cut short", b"\xce\xba\xe1\xbd"),
        ("6.8", b"\xf8\x88\x80\x80\x80"),
        ("6.10", b"\xf7\xbf\xbf\xbf"),
        ("6.12", b"\x80"),
        ("6.13", b"\xc0 \xc1 "),
        ("6.15", b"\xc0"),
        ("6.17", b"\xff"),
        ("6.18 overlong", b"\xc0\xaf"),
        ("6.20 surrogate", b"\xed\xa0\x80"),
        ("6.21 pair", b"\xed\xa0\x80\xed\xb0\x80"),
    ] {
        check(case, &frame(0x81, payload), &invalid());
    }
    for scalar in ['\0', '\u{7f}', '\u{7ff}', '\u{fffe}', '\u{ffff}', '\u{1f600}', '\u{10ffff}'] {
        let valid = scalar.to_string();
        check("6.7, 6.9, 6.22", &frame(0x81, valid.as_bytes()), &[text(&valid)]);
    }
}

#[test]
fn group_6_4_invalid_text_is_refused_at_once() {
    // The frame has not ended; the bytes so far can begin no text.
    let mut bytes = frames(&[(0x01, "κόσμε".as_bytes())]);
    bytes.extend(&frame(0x80, b"\xf4\x90\x80\x80 and more")[..6 + 2]);
    check("6.4", &bytes, &[ReaderEvent::Error(FrameError::InvalidUtf8)]);
    // Nothing is refused before the byte that makes it impossible.
    bytes.pop();
    check("6.4 before", &bytes, &[]);
}

#[test]
fn group_7_closing() {
    let ended = |code, reason: &str| vec![ReaderEvent::Close(Some((code, reason.to_owned())))];
    for (case, bytes, expected) in [
        ("7.1.1", frames(&[(0x81, b"a"), (0x88, b"")]), vec![text("a"), ReaderEvent::Close(None)]),
        ("7.1.2", [close(1000, b""), close(1000, b"")].concat(), ended(1000, "")),
        ("7.1.3", [close(1000, b""), frame(0x89, b"x")].concat(), ended(1000, "")),
        ("7.1.4", [close(1000, b""), frame(0x81, b"x")].concat(), ended(1000, "")),
        ("7.3.1", frames(&[(0x88, b"")]), vec![ReaderEvent::Close(None)]),
        ("7.3.2", frames(&[(0x88, b"a")]), vec![ReaderEvent::Error(FrameError::CloseCutShort)]),
        ("7.3.4", close(1000, b"Hello World!"), ended(1000, "Hello World!")),
        ("7.3.5", close(1000, &[b'*'; 123]), ended(1000, &"*".repeat(123))),
        ("7.3.6", close(1000, &[b'*'; 124]), vec![ReaderEvent::Error(FrameError::ControlTooLong)]),
        ("7.5.1", close(1000, b"\xce\xba\xed\xa0\x80"), vec![ReaderEvent::Error(FrameError::InvalidUtf8)]),
    ] {
        check(case, &bytes, &expected);
    }
    for code in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999] {
        check("7.7", &close(code, b"why"), &ended(code, "why"));
    }
    for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535] {
        check("7.9, 7.13", &close(code, b"why"), &[ReaderEvent::Error(FrameError::CloseCode(code))]);
    }
}

#[test]
fn masks_and_lengths() {
    let too_big = ReaderEvent::Error(FrameError::TooBig(MESSAGE_BYTES_MAX));
    let overlong = || vec![ReaderEvent::Error(FrameError::Length)];
    for (case, bytes, expected) in [
        ("not masked", b"\x81\x02hi".to_vec(), vec![ReaderEvent::Error(FrameError::Unmasked)]),
        ("125 in 16 bits", b"\x82\xfe\0\x7d".to_vec(), overlong()),
        ("65535 in 64 bits", b"\x82\xff\0\0\0\0\0\0\xff\xff".to_vec(), overlong()),
        ("highest bit", b"\x82\xff\x80\0\0\0\0\x01\0\0".to_vec(), overlong()),
        ("one byte too long", b"\x82\xff\0\0\0\0\0\x01\x11\x71".to_vec(), vec![too_big.clone()]),
        ("too long in parts", [frame(0x02, &[1; 69_999]), frame(0x80, &[2; 2])].concat(), vec![too_big.clone()]),
        ("2^62", b"\x82\xff\x40\0\0\0\0\0\0\0".to_vec(), vec![too_big]),
    ] {
        check(case, &bytes, &expected);
    }
}
