//! Properties of every message, on generated ones: valid ones, damaged ones, and ones made of nothing but trouble.

mod chunks;
mod edits;
mod field_blocks;
mod generate;
mod grammar;

use generate::{chunked, damaged, nasty_request, nasty_response, request, response};
use proptest::collection::vec;
use proptest::prelude::*;
use stillgate_wire::{HeadLimits, HeadProgress, Method, RequestHead, ResponseHead, checks};

/// Every prefix of `bytes` that ends at a cut, and `bytes` itself.
fn prefixes<'b>(bytes: &'b [u8], cuts: &[usize]) -> Vec<&'b [u8]> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    ends.push(bytes.len());
    ends.sort_unstable();
    ends.into_iter().map(|end| &bytes[..end]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_checks_hold_for_request_heads(
        good in request().prop_map(|r| r.bytes()),
        bad in damaged(request().prop_map(|r| r.bytes())),
        worse in nasty_request(),
    ) {
        for head in [good, bad, worse] {
            checks::request_head(&head);
        }
    }

    #[test]
    fn the_checks_hold_for_response_heads(
        good in response().prop_map(|r| r.bytes()),
        bad in damaged(response().prop_map(|r| r.bytes())),
        worse in nasty_response(),
    ) {
        for head in [good, bad, worse] {
            checks::response_head(&head);
        }
    }

    #[test]
    fn the_checks_hold_for_chunked_bodies(
        good in chunked().prop_map(|c| c.bytes()),
        bad in damaged(chunked().prop_map(|c| c.bytes())),
    ) {
        checks::chunked_body(&good);
        checks::chunked_body(&bad);
    }

    #[test]
    fn request_heads_parse_alike_however_cut(
        bytes in prop_oneof![request().prop_map(|r| r.bytes()), damaged(request().prop_map(|r| r.bytes()))],
        cuts in vec(any::<usize>(), 0..8),
        head_bytes_max in prop_oneof![1usize..400, Just(16 * 1024)],
        target_bytes_max in prop_oneof![0usize..30, Just(8 * 1024)],
        headers_max in prop_oneof![0usize..10, Just(100)],
    ) {
        let limits = HeadLimits { head_bytes_max, target_bytes_max, headers_max };
        let mut whole = RequestHead::default();
        let expected = whole.advance(&bytes, &limits);
        let mut head = RequestHead::default();
        let mut result = Ok(HeadProgress::Partial);
        for prefix in prefixes(&bytes, &cuts) {
            result = head.advance(prefix, &limits);
            if result != Ok(HeadProgress::Partial) {
                break;
            }
        }
        prop_assert_eq!(&result, &expected);
        if let Ok(HeadProgress::Complete(len)) = expected {
            prop_assert!(len <= head_bytes_max && head.target.len as usize <= target_bytes_max);
            prop_assert!(head.fields.len() <= headers_max);
            prop_assert_eq!(&head.fields, &whole.fields);
            prop_assert_eq!((head.framing, head.hop_by_hop, head.target), (whole.framing, whole.hop_by_hop, whole.target));
        }
    }

    #[test]
    fn response_heads_parse_alike_however_cut(
        bytes in prop_oneof![response().prop_map(|r| r.bytes()), damaged(response().prop_map(|r| r.bytes()))],
        cuts in vec(any::<usize>(), 0..8),
        head_bytes_max in prop_oneof![1usize..400, Just(16 * 1024)],
        headers_max in prop_oneof![0usize..10, Just(100)],
    ) {
        let limits = HeadLimits { head_bytes_max, headers_max, target_bytes_max: 0 };
        let mut whole = ResponseHead::default();
        let expected = whole.advance(&bytes, Method::Get, &limits);
        let mut head = ResponseHead::default();
        let mut result = Ok(HeadProgress::Partial);
        for prefix in prefixes(&bytes, &cuts) {
            result = head.advance(prefix, Method::Get, &limits);
            if result != Ok(HeadProgress::Partial) {
                break;
            }
        }
        prop_assert_eq!(&result, &expected);
        if let Ok(HeadProgress::Complete(len)) = expected {
            prop_assert!(len <= head_bytes_max && head.fields.len() <= headers_max);
            prop_assert_eq!(&head.fields, &whole.fields);
            prop_assert_eq!((head.status, head.framing, head.reason), (whole.status, whole.framing, whole.reason));
        }
    }

    /// A head object is reused from message to message: no part of the last one may remain.
    #[test]
    fn a_reused_head_reads_as_a_fresh_one(
        first in damaged(request().prop_map(|r| r.bytes())), second in request().prop_map(|r| r.bytes()),
    ) {
        let limits = HeadLimits::default();
        let mut reused = RequestHead::default();
        // Whether the first is accepted or refused, the object must forget it.
        let refused = reused.advance(&first, &limits).is_err();
        if refused { reused.clear() } else { reused.reset() }
        let mut fresh = RequestHead::default();
        prop_assert_eq!(reused.advance(&second, &limits), fresh.advance(&second, &limits));
        prop_assert_eq!(format!("{reused:?}"), format!("{fresh:?}"));
    }
}
