//! Messages from and to devices, in JSON and in CBOR: well formed, and hostile.

use minicbor::Encoder;
use proptest::prelude::*;
use serde_json::{Value, json};
use stillgate_devices::protocol::{Body, BodyError, DEPTH_MAX, DeviceProtocol, FromDevice, MessageId, ProtocolError};

const ID: MessageId = MessageId(0x5f);
const ID_TEXT: &str = "0000000000000000000000000000005f";

/// The gateway's message for this body.
fn message(protocol: DeviceProtocol, body: &Body<'_>) -> Vec<u8> {
    let encoded = protocol.encode(body).unwrap();
    let mut out = Vec::new();
    protocol.write_message(ID, 7, &encoded, &mut out);
    assert_eq!(
        encoded.is_text(),
        protocol == DeviceProtocol::Json || (protocol == DeviceProtocol::Raw && !matches!(body, Body::Bytes(_)))
    );
    out
}

fn bytes(bytes: &'static [u8]) -> Body<'static> {
    Body::Bytes(bytes.into())
}

#[test]
fn bodies_are_embedded_in_json() {
    let with = |rest: &str| format!(r#"{{"type":"message","id":"{ID_TEXT}","seq":7,"body":{rest}}}"#);
    for (body, expected) in [
        (Body::Json("{\"b\": 1e400,\"b\":2}".into()), with("{\"b\": 1e400,\"b\":2}")),
        (Body::Text("\"on\"\n\u{1}".into()), with(r#""\"on\"\n\u0001""#)),
        (bytes(b"\xff\xfe\xfd\xfc"), with(r#""//79/A==","encoding":"base64""#)),
    ] {
        assert_eq!(String::from_utf8(message(DeviceProtocol::Json, &body)).unwrap(), expected);
    }
}

/// A CBOR message read by the converter for bodies, whose own tests are below.
fn cbor_as_json(payload: &[u8]) -> Value {
    let event = &b"\xa2\x64type\x65event\x64body"[..];
    match DeviceProtocol::Cbor.read(false, &[event, payload].concat()).unwrap() {
        FromDevice::Event { body: Body::Json(json) } => serde_json::from_str(&json).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn cbor(write: impl FnOnce(&mut Encoder<&mut Vec<u8>>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut Encoder::new(&mut out));
    out
}

#[test]
fn bodies_are_embedded_in_cbor() {
    let with = |body: Value| json!({"type": "message", "id": ID_TEXT, "seq": 7, "body": body});
    for (body, expected) in [
        (Body::Json("{\"b\": [1, -2, 1.5, null, true, \"x\"]}".into()), json!({"b": [1, -2, 1.5, null, true, "x"]})),
        (Body::Text("\"on\"".into()), json!("\"on\"")),
        // Bytes inside a value are base64url in JSON.
        (bytes(b"\xff\xfe\xfd\xfc"), json!("__79_A")),
    ] {
        assert_eq!(cbor_as_json(&message(DeviceProtocol::Cbor, &body)), with(expected));
    }
    assert_eq!(DeviceProtocol::Cbor.encode(&Body::Json("[1e400]".into())), Err(BodyError::Number));
}

#[test]
fn raw_is_the_body_and_nothing_more() {
    assert_eq!(message(DeviceProtocol::Raw, &Body::Text("on".into())), b"on");
    assert_eq!(message(DeviceProtocol::Raw, &bytes(b"\xff")), b"\xff");
    let event = |body| Ok(FromDevice::Event { body });
    assert_eq!(DeviceProtocol::Raw.read(true, b"{\"type\":1}"), event(Body::Text("{\"type\":1}".into())));
    assert_eq!(DeviceProtocol::Raw.read(false, b"on"), event(bytes(b"on")));
    let mut out = Vec::new();
    DeviceProtocol::Raw.write_hello("s", "r", &mut out);
    assert!(out.is_empty());
}

#[test]
fn greetings() {
    let mut out = Vec::new();
    DeviceProtocol::Json.write_hello("s", "r", &mut out);
    assert_eq!(out, br#"{"type":"hello","session":"s","resume":"r"}"#);
    out.clear();
    DeviceProtocol::Cbor.write_hello("s", "r", &mut out);
    assert_eq!(cbor_as_json(&out), json!({"type": "hello", "session": "s", "resume": "r"}));
}

#[test]
fn what_a_device_says_in_json() {
    let reply = |body| FromDevice::Reply { id: ID, body };
    let event = |body| FromDevice::Event { body };
    for (text, expected) in [
        (r#"{"type":"ack","seq":7}"#, FromDevice::Ack { seq: 7 }),
        (r#" { "seq" : 18446744073709551615 , "type" : "a\u0063k" } "#, FromDevice::Ack { seq: u64::MAX }),
        (
            r#"{"type":"reply","id":"0000000000000000000000000000005f","body":{"a": [1,{}]}}"#,
            reply(Body::Json("{\"a\": [1,{}]}".into())),
        ),
        (r#"{"type":"event","body":null}"#, event(Body::Json("null".into()))),
        (r#"{"type":"event","body":"__8=","encoding":"base64"}"#.replace('_', "/").leak(), event(bytes(b"\xff\xff"))),
        (r#"{"type":"event","body":{"a":1,"a":2}}"#, event(Body::Json("{\"a\":1,\"a\":2}".into()))),
        (r#"{"type":"hello"}"#, FromDevice::Hello { session: None, resume: None }),
        (
            r#"{"type":"hello","session":"a","resume":"b"}"#,
            FromDevice::Hello { session: Some("a".into()), resume: Some("b".into()) },
        ),
    ] {
        assert_eq!(DeviceProtocol::Json.read(true, text.as_bytes()).unwrap(), expected, "{text}");
    }
}

#[test]
fn hostile_json() {
    let long = format!(r#"{{"type":"hello","session":"{}"}}"#, "s".repeat(257));
    let deep = format!(r#"{{"type":"event","body":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    let open = format!(r#"{{"type":"event","body":{}"#, "{\"a\":".repeat(10_000));
    for (text, expected) in [
        (&b""[..], "not JSON at line 1, column 0"),
        (b"[]", r#"a message is one object with a "type""#),
        (b"7", r#"a message is one object with a "type""#),
        (b"{\"type\":\"ack\",\"seq\":1}{", "not JSON at line 1, column 23"),
        (b"{\"type\":\"ack\",\"seq\":1,}", "not JSON at line 1, column 23"),
        (b"{}", r#"a message needs "type""#),
        (br#"{"type":7}"#, r#""type" must be a string: ack, reply, event or hello"#),
        (
            br#"{"type":"shutdown-everything-at-once-now"}"#,
            r#"unknown type "shutdown-everything-at-o"; send ack, reply, event or hello"#,
        ),
        (br#"{"type":"ack"}"#, r#"ack needs "seq""#),
        (br#"{"type":"ack","seq":1,"seq":2}"#, r#""seq" occurs twice; send it once"#),
        (br#"{"type":"ack","s\u0065q":1,"seq":2}"#, r#""seq" occurs twice; send it once"#),
        (br#"{"type":"ack","seq":1,"body":2}"#, r#"ack has no "body"; leave it out"#),
        (br#"{"type":"ack","sequence":1}"#, r#"unknown key "sequence"; put your own data into "body""#),
        (br#"{"type":"ack","seq":-1}"#, r#""seq" must be the whole number of a message, as it was sent"#),
        (br#"{"type":"ack","seq":1.0}"#, r#""seq" must be the whole number of a message, as it was sent"#),
        (br#"{"type":"ack","seq":1e400}"#, r#""seq" must be the whole number of a message, as it was sent"#),
        (
            br#"{"type":"ack","seq":18446744073709551616}"#,
            r#""seq" must be the whole number of a message, as it was sent"#,
        ),
        (br#"{"type":"reply","id":"5f","body":1}"#, r#""id" must be the id of a message, as it was sent"#),
        (br#"{"type":"reply","id":"0000000000000000000000000000005f"}"#, r#"reply needs "body""#),
        (br#"{"type":"event","body":1,"encoding":"base64"}"#, r#""body" must be padded base64, as "encoding" says"#),
        (br#"{"type":"event","body":"a","encoding":"base64"}"#, r#""body" must be padded base64, as "encoding" says"#),
        (br#"{"type":"event","body":"a","encoding":"gzip"}"#, r#""encoding" must be "base64", or left out"#),
        (b"{\"type\":\"event\",\"body\":\"\xff\"}", "not JSON at line 1, column 25"),
        (long.as_bytes(), r#""session" must be the value from the gateway's last hello, as a string"#),
        (deep.as_bytes(), r#""body": nested more than 64 deep; flatten it"#),
        (open.as_bytes(), "not JSON at line 1, column 50023"),
    ] {
        let error = DeviceProtocol::Json.read(true, text).unwrap_err();
        let shown = String::from_utf8_lossy(&text[..text.len().min(80)]).into_owned();
        assert_eq!(error.to_string(), expected, "{shown}");
    }
    assert_eq!(DeviceProtocol::Json.read(false, br#"{"type":"ack","seq":7}"#), Err(ProtocolError::Binary));
}

#[test]
fn what_a_device_says_in_cbor() {
    let ack = b"\xa2\x63seq\x07\x64type\x63ack";
    assert_eq!(DeviceProtocol::Cbor.read(false, ack), Ok(FromDevice::Ack { seq: 7 }));
    assert_eq!(DeviceProtocol::Cbor.read(true, ack), Err(ProtocolError::Text));
    let reply = cbor(|it| {
        it.begin_map().unwrap().str("type").unwrap().str("reply").unwrap().str("id").unwrap().str(ID_TEXT).unwrap();
        it.str("body").unwrap().bytes(b"\xff").unwrap().end().unwrap();
    });
    assert_eq!(DeviceProtocol::Cbor.read(false, &reply), Ok(FromDevice::Reply { id: ID, body: bytes(b"\xff") }));
}

/// `{"type":"event","body":BODY}`.
fn cbor_event(body: &[u8]) -> Vec<u8> {
    [b"\xa2\x64type\x65event\x64body", body].concat()
}

#[test]
fn cbor_values_as_json() {
    for (body, expected) in [
        (&b"\x1b\xff\xff\xff\xff\xff\xff\xff\xff"[..], "18446744073709551615"),
        (b"\x3b\xff\xff\xff\xff\xff\xff\xff\xff", "-18446744073709551616"),
        (b"\xf9\x3c\x00", "1.0"),
        (b"\xf9\x7b\xff", "65504.0"),
        (b"\xf9\x00\x01", "5.960464477539063e-8"),
        (b"\xf9\xfc\x00", "null"),
        (b"\xfa\x3f\xc0\x00\x00", "1.5"),
        (b"\xfb\x7f\xf8\0\0\0\0\0\0", "null"),
        (b"\xf7", "null"),
        (b"\xc0\x61x", "\"x\""),
        (b"\x7f\x61a\x62\x22\n\xff", "\"a\\\"\\n\""),
        (b"\x5f\x41\xff\x41\xff\xff", "\"__8\""),
        (b"\x9f\x01\x80\xa0\xff", "[1,[],{}]"),
        (b"\xbf\x61a\x81\xf4\x61b\xf6\xff", "{\"a\":[false],\"b\":null}"),
    ] {
        let event = cbor_event(body);
        assert_eq!(
            DeviceProtocol::Cbor.read(false, &event),
            Ok(FromDevice::Event { body: Body::Json(expected.into()) }),
            "{body:x?}"
        );
    }
}

#[test]
fn hostile_cbor() {
    let at = cbor_event(b"").len();
    let body = |error| ProtocolError::Body(error);
    let deep = |opening: &[u8], depth: usize| cbor_event(&[&opening.repeat(depth)[..], b"\x00"].concat());
    for (payload, expected) in [
        (b"".to_vec(), ProtocolError::Cbor { at: 0 }),
        (b"\x80".to_vec(), ProtocolError::NoObject),
        (b"\xa1\x01\x02".to_vec(), ProtocolError::NoObject),
        (b"\xa0\x00".to_vec(), ProtocolError::Cbor { at: 1 }),
        (
            b"\xa1\x64type\x01".to_vec(),
            ProtocolError::Value { key: "type", wanted: "a string: ack, reply, event or hello" },
        ),
        (b"\xbb\xff\xff\xff\xff\xff\xff\xff\xff".to_vec(), ProtocolError::Cbor { at: 9 }),
        (b"\xa2\x64type\x63ack\x64type\x63ack".to_vec(), ProtocolError::RepeatedKey("type")),
        (b"\xa1\x64type\x64ab\xff\xff".to_vec(), ProtocolError::Cbor { at: 6 }),
        (deep(b"\x81", DEPTH_MAX + 1), body(BodyError::Depth)),
        (deep(b"\xa1\x61a", 10_000), body(BodyError::Depth)),
        (deep(b"\xc1", 10_000), body(BodyError::Depth)),
        (cbor_event(b"\x9a\xff\xff\xff\xff"), ProtocolError::Cbor { at: at + 5 }),
        (cbor_event(b"\xa1\x01\x02"), body(BodyError::Key { at: 1 })),
        (cbor_event(b"\xe0"), body(BodyError::Cbor { at: 0 })),
    ] {
        let error = DeviceProtocol::Cbor.read(false, &payload).unwrap_err();
        match (&error, &expected) {
            // The library's limit is its own choice.
            (ProtocolError::Cbor { .. }, ProtocolError::Cbor { .. }) => {}
            _ => assert_eq!(error, expected, "{:x?}", &payload[..payload.len().min(40)]),
        }
    }
    assert!(DeviceProtocol::Cbor.read(false, &deep(b"\x81", DEPTH_MAX)).is_ok());
}

fn a_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::num::f64::NORMAL.prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(".{0,4}", inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_or_refused(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        for protocol in [DeviceProtocol::Json, DeviceProtocol::Cbor, DeviceProtocol::Raw] {
            let is_utf8 = std::str::from_utf8(&payload).is_ok();
            let _is_fine = protocol.read(is_utf8, &payload).is_ok();
            let _is_fine = protocol.read(false, &payload).is_ok();
        }
    }

    #[test]
    fn almost_messages_are_read_or_refused(
        value in a_value(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let json = DeviceProtocol::Json.encode(&Body::Json(value.to_string().into())).unwrap();
        let cbor = DeviceProtocol::Cbor.encode(&Body::Json(value.to_string().into())).unwrap();
        for (protocol, encoded) in [(DeviceProtocol::Json, json), (DeviceProtocol::Cbor, cbor)] {
            let mut payload = Vec::new();
            protocol.write_message(ID, 1, &encoded, &mut payload);
            let at = at.index(payload.len());
            payload[at] = byte;
            payload.truncate(cut.index(payload.len()) + 1);
            if let Ok(FromDevice::Event { body: Body::Json(json) }) = protocol.read(protocol == DeviceProtocol::Json, &payload) {
                prop_assert!(serde_json::from_str::<serde::de::IgnoredAny>(&json).is_ok());
            }
        }
    }

    #[test]
    fn bodies_survive_both_protocols(value in a_value()) {
        let text = value.to_string();
        let cbor = message(DeviceProtocol::Cbor, &Body::Json(text.as_str().into()));
        prop_assert_eq!(&cbor_as_json(&cbor)["body"], &value);
        let json: Value = serde_json::from_slice(&message(DeviceProtocol::Json, &Body::Json(text.into()))).unwrap();
        prop_assert_eq!(&json["body"], &value);
    }
}
