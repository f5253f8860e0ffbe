//! The part of MQTT 3.1.1 that a subscriber and a publisher need; every packet is shorter than 128 bytes.

use std::io::{self, Read};

/// The answers to [`connect`], [`subscribe`] and [`publish`].
pub(super) const CONNACK: [u8; 4] = [0x20, 2, 0, 0];
pub(super) const SUBACK: [u8; 5] = [0x90, 3, 0, 1, 0];
pub(super) const PUBACK: [u8; 4] = [0x40, 2, 0, 1];

/// A clean session, no keep-alive.
pub(super) fn connect(name: &str) -> Vec<u8> {
    packet(0x10, &[b"\0\x04MQTT\x04\x02\0\0", string(name).as_slice()])
}

/// Subscribes to the topic of a client at QoS 0; packet 1.
pub(super) fn subscribe(name: &str) -> Vec<u8> {
    packet(0x82, &[&[0, 1], string(&topic(name)).as_slice(), &[0]])
}

/// Publishes at QoS 1, so that the broker answers; always packet 1, since only one is under way at a time.
pub(super) fn publish(name: &str, body: &str) -> Vec<u8> {
    packet(0x32, &[string(&topic(name)).as_slice(), &[0, 1], body.as_bytes()])
}

/// The payload of a PUBLISH with QoS 0.
pub(super) fn message(reader: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = [0; 2];
    reader.read_exact(&mut head)?;
    if head[0] != 0x30 || head[1] > 127 {
        return Err(io::Error::other(format!("not a short message of QoS 0: {head:?}")));
    }
    let mut rest = vec![0; usize::from(head[1])];
    reader.read_exact(&mut rest)?;
    let topic = rest.first_chunk::<2>().map_or(0, |length| usize::from(u16::from_be_bytes(*length)));
    rest.get(2 + topic..).map(<[u8]>::to_vec).ok_or_else(|| io::Error::other("a message without a topic"))
}

fn topic(name: &str) -> String {
    format!("d/{name}")
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat()
}

fn packet(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    assert!(body.len() < 128, "a length of one byte");
    [&[kind, body.len() as u8], body.as_slice()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_as_the_standard_has_them() {
        assert_eq!(connect("d1"), b"\x10\x0e\0\x04MQTT\x04\x02\0\0\0\x02d1");
        assert_eq!(subscribe("d1"), b"\x82\x09\0\x01\0\x04d/d1\0");
        assert_eq!(publish("d1", "hi"), b"\x32\x0a\0\x04d/d1\0\x01hi");
        assert_eq!(message(&mut b"\x30\x08\0\x04d/d1hi".as_slice()).unwrap(), b"hi");
        assert!(message(&mut b"\x90\x03".as_slice()).is_err());
    }
}
