//! Lists of fields, written in every form of HPACK, are reported correctly.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use stillgate_wire::checks::{FieldEncoder, HpackRepresentation, expected_block};
use stillgate_wire::{FieldBlockFacts, FieldWalker};

type Pair = (Vec<u8>, Vec<u8>);

/// A field, its form, and whether it is written briefly.
type Written = (Pair, HpackRepresentation, bool);

#[rustfmt::skip]
const NAMES: &[&str] = &[
    ":path", ":status", ":method", ":authority", ":scheme", ":protocol", ":statusx", ":pat", ":", "cookie", "x", "te",
    "upgrade", "connection", "transfer-encoding", "transfer-encodings", "a-name-of-our-own",
];

fn field() -> impl Strategy<Value = Written> {
    let name = select(NAMES).prop_map(|name| name.as_bytes().to_vec());
    let value = prop_oneof![
        select(&["/", "/a#b", "#", "GET", "103", "200", "trailers", "trailers,", ""][..])
            .prop_map(|value| value.as_bytes().to_vec()),
        vec(any::<u8>(), 0..9),
        // Long enough that the table overflows now and then.
        (0..3000_usize).prop_map(|length| vec![b'y'; length]),
    ];
    let form = select(
        &[
            HpackRepresentation::Indexed,
            HpackRepresentation::Indexed,
            HpackRepresentation::Inserted,
            HpackRepresentation::Literal,
            HpackRepresentation::NeverIndexed,
        ][..],
    );
    ((name, value), form, any::<bool>())
}

/// A new size of the table, if any, and fields.
fn block() -> impl Strategy<Value = (Option<usize>, Vec<Written>)> {
    (proptest::option::weighted(0.1, 0..=4096_usize), vec(field(), 0..8))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn are_told_of_however_split(blocks in vec(block(), 1..12), step in 1..40_usize) {
        let (mut encoder, mut walker) = (FieldEncoder::default(), FieldWalker::default());
        for (size_max, fields) in blocks {
            let mut bytes = Vec::new();
            if let Some(size_max) = size_max {
                encoder.resize(&mut bytes, size_max);
            }
            for ((name, value), form, is_short) in &fields {
                encoder.field(&mut bytes, name, value, *form, *is_short);
            }
            bytes.chunks(step).for_each(|piece| walker.walk(piece));
            let fields: Vec<Pair> = fields.into_iter().map(|(field, ..)| field).collect();
            prop_assert_eq!(walker.end(), Some(expected_block(&fields)));
        }
    }

    #[test]
    fn any_bytes_are_read_as_a_decoder_reads_them(bytes in vec(any::<u8>(), 0..400)) {
        stillgate_wire::checks::field_blocks(&bytes);
    }
}

#[test]
fn what_cannot_be_followed_ends_the_walk() {
    let check = |blocks: &[&[u8]], good: usize| {
        let mut walker = FieldWalker::default();
        let told = blocks.iter().map(|block| {
            walker.walk(block);
            walker.end()
        });
        assert_eq!(told.map(|block| usize::from(block.is_some())).sum::<usize>(), good, "{blocks:?}");
    };
    check(&[&[0x82], &[0xbe], &[0x82]], 1);
    check(&[&[0x80]], 0);
    // Cut in a name, in an integer; an integer, and a table, that are too large.
    check(&[&[0x82], &[0x40, 3, b'a'], &[0x82]], 1);
    check(&[&[0x82, 0xff], &[0x82]], 0);
    check(&[&[0xff, 0x80, 0x80, 0x80, 0x80, 0]], 0);
    check(&[&[0x3f, 0xe2, 0x1f]], 0);
    check(&[&[0x3f, 0xe1, 0x1f, 0x82], &[0x20]], 2);
    // Huffman coded, with the end of a string in it.
    check(&[&[0, 0x84, 0xff, 0xff, 0xff, 0xff, 0]], 0);
}

/// RFC 7541 appendix C.4: three requests, of which the later ones use what the first has put into the table.
#[test]
fn the_example_of_the_standard() {
    let requests: [(&[u8], u32); 3] = [
        (b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff", 180),
        (b"\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf", 233),
        (b"\x82\x87\x85\xbf\x40\x88\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf", 245),
    ];
    let mut walker = FieldWalker::default();
    for (request, size) in requests {
        walker.walk(request);
        let expected =
            FieldBlockFacts { size, has_pseudo: true, has_request_pseudo: true, ..FieldBlockFacts::default() };
        assert_eq!(walker.end(), Some(expected));
    }
}
