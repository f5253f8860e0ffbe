//! Frames under any splitting and any bytes.

use crate::client::{ReaderEvent, close, frame, read};
use proptest::prelude::*;

/// A frame of a client that is usually well behaved.
fn a_frame() -> impl Strategy<Value = Vec<u8>> {
    let first = prop_oneof![
        8 => prop::sample::select(vec![0x81u8, 0x82, 0x01, 0x02, 0x00, 0x80, 0x89, 0x8a]),
        1 => any::<u8>(),
    ];
    let payload = prop_oneof![
        4 => ".{0,40}".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..300),
    ];
    prop_oneof![
        12 => (first, payload).prop_map(|(first, payload)| frame(first, &payload)),
        1 => (any::<u16>(), ".{0,10}").prop_map(|(code, reason)| close(code, reason.as_bytes())),
        1 => prop::collection::vec(any::<u8>(), 0..20),
    ]
}

/// A whole message in parts, with control frames between them.
fn a_message() -> impl Strategy<Value = (bool, Vec<Vec<u8>>, Vec<bool>)> {
    (
        any::<bool>(),
        prop::collection::vec(".{0,12}".prop_map(String::into_bytes), 1..6),
        prop::collection::vec(any::<bool>(), 6),
    )
}

fn split(bytes: &[u8], cuts: &[prop::sample::Index]) -> Vec<Vec<u8>> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    at.extend([0, bytes.len()]);
    at.sort_unstable();
    at.windows(2).map(|pair| bytes[pair[0]..pair[1]].to_vec()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_splitting_gives_the_same(
        frames in prop::collection::vec(a_frame(), 0..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let bytes = frames.concat();
        let pieces = split(&bytes, &cuts);
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let whole = read(500, &[&bytes]);
        prop_assert_eq!(&read(500, &pieces), &whole);
        prop_assert_eq!(read(500, &bytes.chunks(1).collect::<Vec<_>>()), whole);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000), message_bytes_max in 0u32..3000) {
        for seen in read(message_bytes_max, &[&bytes]) {
            match seen {
                ReaderEvent::Text(payload) => {
                    prop_assert!(payload.len() <= message_bytes_max as usize);
                    prop_assert!(std::str::from_utf8(&payload).is_ok());
                }
                ReaderEvent::Binary(payload) => prop_assert!(payload.len() <= message_bytes_max as usize),
                ReaderEvent::Ping(payload) | ReaderEvent::Pong(payload) => prop_assert!(payload.len() <= 125),
                ReaderEvent::Close(_) | ReaderEvent::Error(_) => {}
            }
        }
    }

    #[test]
    fn what_was_sent_is_what_is_read(messages in prop::collection::vec(a_message(), 1..5)) {
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for (is_text, parts, pings) in messages {
            let last = parts.len() - 1;
            for (index, part) in parts.iter().enumerate() {
                let opcode = if index > 0 { 0 } else if is_text { 1 } else { 2 };
                bytes.extend(frame(opcode | if index == last { 0x80 } else { 0 }, part));
                if pings[index] && index < last {
                    bytes.extend(frame(0x89, &[index as u8]));
                    expected.push(ReaderEvent::Ping(vec![index as u8]));
                }
            }
            expected.push(if is_text { ReaderEvent::Text(parts.concat()) } else { ReaderEvent::Binary(parts.concat()) });
        }
        prop_assert_eq!(read(10_000, &[&bytes]), expected);
    }
}
