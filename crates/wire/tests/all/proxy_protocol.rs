//! PROXY protocol headers: accepted and refused ones, independent of how the bytes arrive.

use proptest::collection::vec;
use proptest::prelude::*;
use std::net::{IpAddr, SocketAddr};
use stillgate_wire::proxy_protocol::{
    ClientTls, ProxyHeader, V1_LOCAL, V2_BYTES_MAX, V2_LOCAL, parse, write_v1, write_v2,
};
use stillgate_wire::{ProxyProtocolError as E, checks};

/// HAProxy 2.6 with `send-proxy-v2`, requested by curl.
const HAPROXY_TCP4: &str = "0d0a0d0a000d0a515549540a2111000c7f0000017f000001d07e7276";
/// With `proxy-v2-options ssl,cert-cn,authority,crc32c` for a client without a certificate.
const HAPROXY_TLS: &str = "0d0a0d0a000d0a515549540a211100347f0000017f000001a8dc7277030004e5b5c1ac02000c676174652e6578616d706c65\
     20000f0100000000210007544c5376312e33";
/// The header for a client whose certificate it verified.
const HAPROXY_CERTIFICATE: &str = "0d0a0d0a000d0a515549540a211100457f0000017f000001a8e47277030004662fb33a02000c676174652e6578616d706c65\
     2000200700000000210007544c5376312e3322000e636c69656e742e6578616d706c65";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).expect("a digit") as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// A version 2 header with these bytes after the signature, and a length that fits them.
fn v2(version_and_command: u8, family: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u16).to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n", &[version_and_command, family][..], &length, payload].concat()
}

/// A header that forwards TCP over IPv4, with these TLVs.
fn with_tlvs(tlvs: &[u8]) -> Vec<u8> {
    v2(0x21, 0x11, &[&[192, 0, 2, 1, 192, 0, 2, 2, 0x9c, 0x40, 1, 0xbb], tlvs].concat())
}

fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    [&[kind][..], &(value.len() as u16).to_be_bytes(), value].concat()
}

fn pair(source: &str, destination: &str) -> Option<(SocketAddr, SocketAddr)> {
    Some((source.parse().expect("an address"), destination.parse().expect("an address")))
}

/// Checks that `bytes` are a complete header with these addresses, with any bytes behind and however they are split.
#[track_caller]
fn complete(bytes: &[u8], addresses: Option<(SocketAddr, SocketAddr)>) {
    let followed = [bytes, b"GET / HTTP/1.1\r\n\r\n"].concat();
    checks::proxy_header(&followed);
    match parse(&followed) {
        Ok(ProxyHeader::Complete { len, addresses: found, .. }) => assert_eq!((len, found), (bytes.len(), addresses)),
        other => panic!("{}: {other:?}", bytes.escape_ascii()),
    }
}

#[test]
fn good_headers() {
    let tcp4 = pair("192.0.2.1:40000", "192.0.2.2:443");
    complete(b"PROXY TCP4 192.0.2.1 192.0.2.2 40000 443\r\n", tcp4);
    complete(b"PROXY TCP4 0.0.0.0 255.255.255.255 0 65535\r\n", pair("0.0.0.0:0", "255.255.255.255:65535"));
    complete(b"PROXY TCP6 2001:db8::1 ::1 40000 443\r\n", pair("[2001:db8::1]:40000", "[::1]:443"));
    complete(b"PROXY TCP6 2001:DB8::A ::ffff:192.0.2.1 1 2\r\n", pair("[2001:db8::a]:1", "[::ffff:192.0.2.1]:2"));
    complete(b"PROXY UNKNOWN\r\n", None);
    complete(b"PROXY UNKNOWN \r\n", None);
    let longest = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    let line = format!("PROXY UNKNOWN {longest} {longest} 65535 65535\r\n");
    assert_eq!(line.len(), 107);
    complete(line.as_bytes(), None);
    complete(&with_tlvs(&[]), tcp4);
    complete(&v2(0x21, 0x12, &[1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 0, 2]), pair("1.2.3.4:1", "5.6.7.8:2"));
    let six = [&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1][..], &[0; 15], &[9, 0, 1, 0, 2]].concat();
    complete(&v2(0x21, 0x21, &six), pair("[2001:db8::1]:1", "[::9]:2"));
    complete(&v2(0x21, 0x31, &[b'/'; 216]), None);
    complete(&v2(0x21, 0x00, &[]), None);
    complete(&v2(0x21, 0x00, b"whatever"), None);
    // The family of LOCAL is ignored, and the bytes behind it are skipped.
    complete(&v2(0x20, 0x00, &[]), None);
    complete(&v2(0x20, 0x11, &[1, 2, 3]), None);
    complete(&v2(0x20, 0xff, &[1; 100]), None);
    complete(&with_tlvs(&tlv(0x04, &[0; V2_BYTES_MAX - 28 - 3])), tcp4);
    complete(&with_tlvs(&[tlv(0x01, b"h2"), tlv(0xea, b"x"), tlv(0xea, b"y"), tlv(0x05, b"")].concat()), tcp4);
}

#[test]
fn what_haproxy_writes() {
    let tls = |verified, name| Some(ClientTls { verified, common_name: name });
    for (header, source, expected_tls, name) in [
        (HAPROXY_TCP4, "127.0.0.1:53374", None, None),
        (HAPROXY_TLS, "127.0.0.1:43228", tls(false, None), Some(&b"gate.example"[..])),
        (HAPROXY_CERTIFICATE, "127.0.0.1:43236", tls(true, Some(b"client.example")), Some(b"gate.example")),
    ] {
        let bytes = hex(header);
        let Ok(ProxyHeader::Complete { len, addresses: Some((from, _)), tls, authority }) = parse(&bytes) else {
            panic!("{header}: {:?}", parse(&bytes))
        };
        assert_eq!((len, from, tls, authority), (bytes.len(), source.parse().unwrap(), expected_tls, name));
        checks::proxy_header(&bytes);
    }
}

#[test]
fn what_is_written() {
    for (source, destination, line, golden) in [
        ("127.0.0.1:53374", "127.0.0.1:29302", "PROXY TCP4 127.0.0.1 127.0.0.1 53374 29302\r\n", HAPROXY_TCP4),
        ("[::ffff:127.0.0.1]:53374", "127.0.0.1:29302", "PROXY TCP4 127.0.0.1 127.0.0.1 53374 29302\r\n", HAPROXY_TCP4),
        (
            "[2001:db8::1]:1",
            "192.0.2.1:2",
            "PROXY TCP6 2001:db8::1 ::ffff:192.0.2.1 1 2\r\n",
            "0d0a0d0a000d0a515549540a2121002420010db800000000000000000000000100000000000000000000ffffc000020100010002",
        ),
    ] {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        let mut out = b"before ".to_vec();
        write_v1(source, destination, &mut out);
        assert_eq!(out, [b"before ", line.as_bytes()].concat());
        let mut out = Vec::new();
        write_v2(source, destination, &mut out);
        assert_eq!(out, hex(golden));
    }
}

/// A certificate counts if it was presented and found valid, and TLS if there was any.
#[test]
fn tls_of_the_client() {
    let name = tlv(0x22, b"ann");
    for (client, verify, expected) in [
        (0x00, 0, None),
        (0x06, 0, None),
        (0x01, 0, Some(false)),
        (0x03, 0, Some(true)),
        (0x05, 0, Some(true)),
        (0x03, 1, Some(false)),
        (0x07, 256, Some(false)),
    ] {
        let value = [&[client][..], &u32::to_be_bytes(verify), &name].concat();
        let bytes = with_tlvs(&tlv(0x20, &value));
        let Ok(ProxyHeader::Complete { tls, .. }) = parse(&bytes) else { panic!("{:?}", parse(&bytes)) };
        let expected = expected.map(|verified| ClientTls { verified, common_name: Some(b"ann") });
        assert_eq!(tls, expected, "client {client:#x}, verify {verify}");
    }
}

/// A wrong checksum is refused, wherever the difference is, and so is a malformed one.
#[test]
fn checksums_must_be_right() {
    for header in [HAPROXY_TLS, HAPROXY_CERTIFICATE] {
        let good = hex(header);
        complete(&good, parse_addresses(&good));
        // Changes bytes behind the lengths and types, which are refused for other reasons.
        for at in (16..28).chain(31..35).chain([40, good.len() - 1]) {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                refused(&bad, E::Checksum);
            }
        }
    }
    refused(&with_tlvs(&tlv(3, &[0; 4])), E::Checksum);
    refused(&with_tlvs(&tlv(3, &[0; 3])), E::ChecksumLength);
    refused(&with_tlvs(&tlv(3, &[])), E::ChecksumLength);
    refused(&with_tlvs(&tlv(3, &[0; 5])), E::ChecksumLength);
    let twice = hex(HAPROXY_TLS)[28..35].repeat(2);
    assert!(matches!(parse(&with_tlvs(&twice)), Err(E::Checksum | E::TlvRepeated)));
    // TLVs of LOCAL are skipped.
    complete(&v2(0x20, 0x11, &tlv(3, &[0; 4])), None);
}

fn parse_addresses(bytes: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    match parse(bytes) {
        Ok(ProxyHeader::Complete { addresses, .. }) => addresses,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_speaks_for_its_sender_is_read_as_such() {
    complete(V1_LOCAL, None);
    complete(V2_LOCAL, None);
}

/// Checks that it is refused, also with more bytes behind it.
#[track_caller]
fn refused(bytes: &[u8], error: E) {
    assert_eq!(parse(bytes), Err(error), "{}", bytes[..bytes.len().min(120)].escape_ascii());
    checks::proxy_header(&bytes[..bytes.len().min(V2_BYTES_MAX)]);
    checks::proxy_header(&[&bytes[..bytes.len().min(V2_BYTES_MAX)], b"\r\n\r\n"].concat());
}

#[test]
fn refused_lines() {
    let table = [
        (&b"GET / HTTP/1.1\r\n"[..], E::Signature),
        (b"\x16\x03\x01\x02\0", E::Signature),
        (b"\0", E::Signature),
        (b"POST", E::Signature),
        (b"proxy ", E::Signature),
        (b"PROXY\tTCP4", E::Signature),
        (b"\r\n\r\n\0\r\nQUIT\r", E::Signature),
        (b"\r\n\r\n\0\r\nQUIT \n", E::Signature),
        (b"\r\nGET / HTTP/1.1", E::Signature),
        (b"PROXY \r\n", E::Protocol),
        (b"PROXY TCP\r\n", E::Protocol),
        (b"PROXY tcp4 1.1.1.1 2.2.2.2 3 4\r\n", E::Protocol),
        (b"PROXY UDP4 1.1.1.1 2.2.2.2 3 4\r\n", E::Protocol),
        (b"PROXY  TCP4 1.1.1.1 2.2.2.2 3 4\r\n", E::Protocol),
        (b"PROXY UNKNOWNS\r\n", E::Protocol),
        (b"PROXY TCP4\r\n", E::FieldCount),
        (b"PROXY TCP4 1.1.1.1 2.2.2.2 3\r\n", E::FieldCount),
        (b"PROXY TCP4 1.1.1.1 2.2.2.2 3 4 5\r\n", E::FieldCount),
        (b"PROXY TCP4 1.1.1.1 2.2.2.2 3 4 \r\n", E::FieldCount),
        (b"PROXY TCP4 1.1.1.1 2.2.2.2  3 4\r\n", E::FieldCount),
        (b"PROXY TCP4  1.1.1.1 2.2.2.2 3\r\n", E::Address),
        (b"PROXY TCP4 1.1.1.1 2.2.2.256 3 4\r\n", E::Address),
        (b"PROXY TCP4 1.1.1.01 2.2.2.2 3 4\r\n", E::Address),
        (b"PROXY TCP4 1.1.1 2.2.2.2 3 4\r\n", E::Address),
        (b"PROXY TCP4 0x1.1.1.1 2.2.2.2 3 4\r\n", E::Address),
        (b"PROXY TCP4 ::1 ::2 3 4\r\n", E::Address),
        (b"PROXY TCP4 a.example 2.2.2.2 3 4\r\n", E::Address),
        (b"PROXY TCP4 1.1.1.\xff 2.2.2.2 3 4\r\n", E::Address),
        (b"PROXY TCP6 1.1.1.1 2.2.2.2 3 4\r\n", E::Address),
        (b"PROXY TCP6 [::1] [::2] 3 4\r\n", E::Address),
        (b"PROXY TCP6 fe80::1%eth0 ::2 3 4\r\n", E::Address),
        (b"PROXY TCP6 1::2::3 ::2 3 4\r\n", E::Address),
        (b"PROXY TCP4 1.1.1.1 2.2.2.2 03 4\r\n", E::Port),
        (b"PROXY TCP4 1.1.1.1 2.2.2.2  4\r\n", E::Port),
        (b"PROXY TCP4 1.1.1.1 2.2.2.2 3 00\r\n", E::Port),
        (b"PROXY TCP4 1.1.1.1 2.2.2.2 65536 4\r\n", E::Port),
        (b"PROXY TCP4 1.1.1.1 2.2.2.2 +3 4\r\n", E::Port),
        (b"PROXY TCP4 1.1.1.1 2.2.2.2 -3 4\r\n", E::Port),
        (b"PROXY TCP4 1.1.1.1 2.2.2.2 3 4x\r\n", E::Port),
        (b"PROXY TCP4 1.1.1.1 2.2.2.2 3 99999999999999999999\r\n", E::Port),
        (b"PROXY TCP4 1.1.1.1 2.2.2.2 3 4\n", E::LineEnd),
        (b"PROXY TCP4 1.1.1.1 2.2.2.2 3 4\rGET", E::LineEnd),
        (b"PROXY TCP4 1.1.1.1 2.2.2.2 3 4\r\r\n", E::LineEnd),
        (b"PROXY UNKNOWN\n\r\n", E::LineEnd),
    ];
    table.into_iter().for_each(|(bytes, error)| refused(bytes, error));
    let long = |end: &str| format!("PROXY UNKNOWN {}{end}", "x".repeat(93 - end.len())).into_bytes();
    assert_eq!(long("\r\n").len(), 107);
    refused(&long("xx"), E::LineTooLong);
    refused(&long("x\r"), E::LineTooLong);
}

#[test]
fn refused_headers() {
    let tls = |tlvs: &[u8]| with_tlvs(&tlv(0x20, &[&[1, 0, 0, 0, 0], tlvs].concat()));
    let table = [
        (v2(0x11, 0x11, &[0; 12]), E::Version),
        (v2(0x31, 0x11, &[0; 12]), E::Version),
        (v2(0x22, 0x11, &[0; 12]), E::Command),
        (v2(0x2f, 0x11, &[0; 12]), E::Command),
        (v2(0x21, 0x01, &[0; 12]), E::Family),
        (v2(0x21, 0x10, &[0; 12]), E::Family),
        (v2(0x21, 0x13, &[0; 12]), E::Family),
        (v2(0x21, 0x41, &[0; 12]), E::Family),
        (v2(0x21, 0x11, &[0; 11]), E::AddressLength),
        (v2(0x21, 0x21, &[0; 35]), E::AddressLength),
        (v2(0x21, 0x32, &[0; 215]), E::AddressLength),
        (v2(0x21, 0x11, &[]), E::AddressLength),
        (v2(0x21, 0x11, &[0; V2_BYTES_MAX - 15]), E::HeaderTooLong),
        (v2(0x20, 0x00, &[0; 65535]), E::HeaderTooLong),
        (with_tlvs(&[4]), E::TlvOverrun),
        (with_tlvs(&[4, 0]), E::TlvOverrun),
        (with_tlvs(&[4, 0, 1]), E::TlvOverrun),
        (with_tlvs(&[4, 0xff, 0xff, 0]), E::TlvOverrun),
        (with_tlvs(&[tlv(4, b"x"), vec![4, 0, 2, 0]].concat()), E::TlvOverrun),
        (tls(&[0x22]), E::TlvOverrun),
        (tls(&[0x22, 0, 2, b'a']), E::TlvOverrun),
        (tls(&[tlv(0x22, b"a"), tlv(0x22, b"b")].concat()), E::TlvRepeated),
        (with_tlvs(&[tlv(0x02, b"a"), tlv(0x02, b"a")].concat()), E::TlvRepeated),
        (with_tlvs(&[tlv(0x20, &[0; 5]), tlv(0x20, &[0; 5])].concat()), E::TlvRepeated),
        (with_tlvs(&tlv(0x20, &[1, 0, 0, 0])), E::TlsLength),
        (with_tlvs(&tlv(0x20, &[])), E::TlsLength),
    ];
    table.into_iter().for_each(|(bytes, error)| refused(&bytes, error));
}

/// Other protocols are refused at the first byte that differs, not only when a length that was never meant has
/// arrived.
#[test]
fn refused_early() {
    for (bytes, error) in [
        (&b"G"[..], E::Signature),
        (b"PU", E::Signature),
        (b"\r\n\r\n\0\r\nQUIT\n\x11", E::Version),
        (b"\r\n\r\n\0\r\nQUIT\n\x22", E::Command),
        (b"\r\n\r\n\0\r\nQUIT\n\x21\x41", E::Family),
        (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0b", E::AddressLength),
        (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff", E::HeaderTooLong),
    ] {
        let (_, before) = bytes.split_last().unwrap();
        assert_eq!((parse(before), parse(bytes)), (Ok(ProxyHeader::Partial), Err(error)), "{}", bytes.escape_ascii());
    }
}

fn address() -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), any::<u16>()).prop_map(SocketAddr::from)
}

fn header() -> impl Strategy<Value = Vec<u8>> {
    let written = (address(), address(), any::<bool>(), vec((any::<u8>(), vec(any::<u8>(), 0..40)), 0..6)).prop_map(
        |(source, destination, first, tlvs)| {
            let mut out = Vec::new();
            if first {
                write_v1(source, destination, &mut out);
                return out;
            }
            write_v2(source, destination, &mut out);
            tlvs.iter().for_each(|(kind, value)| out.extend(tlv(*kind, value)));
            let length = (out.len() as u16 - 16).to_be_bytes();
            out[14..16].copy_from_slice(&length);
            out
        },
    );
    prop_oneof![
        written,
        (any::<u8>(), any::<u8>(), vec(any::<u8>(), 0..300))
            .prop_map(|(command, family, rest)| v2(command, family, &rest)),
        "PROXY (TCP4|TCP6|UNKNOWN|TCP)( [0-9a-f.:]{0,12}){0,6}\r?\n?".prop_map(String::into_bytes),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_checks_hold(header in header(), at in any::<usize>(), byte in any::<u8>(), rest in vec(any::<u8>(), 0..40)) {
        checks::proxy_header(&[&header[..], &rest].concat());
        let mut damaged = header;
        let at = at % damaged.len();
        damaged[at] = byte;
        checks::proxy_header(&damaged);
        damaged.truncate(at);
        checks::proxy_header(&damaged);
    }

    #[test]
    fn what_is_written_is_read(source in address(), destination in address()) {
        let mut out = Vec::new();
        for write in [write_v1, write_v2] {
            out.clear();
            write(source, destination, &mut out);
            let Ok(ProxyHeader::Complete { len, addresses: Some(found), .. }) = parse(&out) else {
                panic!("{}", out.escape_ascii())
            };
            let canonical = |address: SocketAddr| (address.ip().to_canonical(), address.port());
            prop_assert_eq!(len, out.len());
            prop_assert_eq!((canonical(found.0), canonical(found.1)), (canonical(source), canonical(destination)));
        }
    }
}
