//! A head written with edits is the old lines less the removed plus the added ones, in HTTP/1.1.
//!
//! The oracle knows the lines that a message was made of; it never uses the parser's results.

use crate::properties::generate::{lines, request, response};
use proptest::collection::vec;
use proptest::prelude::*;
use stillgate_wire::{
    Edits, FieldName, FieldValue, HeadLimits, HeadProgress, Method, RequestEdits, RequestHead, ResponseEdits,
    ResponseHead, write_request, write_response,
};

fn edits(removed: &[bool], count: usize, added: &[(String, Vec<u8>)]) -> Edits {
    let mut edits = Edits::default();
    (0..count).filter(|index| removed[*index]).for_each(|index| edits.removed.insert(index));
    for (name, value) in added {
        // A value like those of heads: blanks around it stay.
        edits.add(FieldName::new(name.as_bytes()).expect("a name"), FieldValue::of_head(value));
    }
    edits
}

fn edited(fields: &[Vec<u8>], removed: &[bool], added: &[(String, Vec<u8>)]) -> Vec<Vec<u8>> {
    let kept = fields.iter().zip(removed).filter(|(_, removed)| !**removed).map(|(line, _)| line.clone());
    kept.chain(added.iter().map(|(name, value)| [name.as_bytes(), b": ", value].concat())).collect()
}

fn added() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    vec(("X[a-z-]{0,12}", vec(prop_oneof![0x20..=0x7eu8, 0x80..=0xffu8], 0..20)), 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn of_requests(
        made in request(),
        removed in vec(any::<bool>(), 16),
        added in added(),
        before in vec(any::<u8>(), 0..5),
    ) {
        let bytes = made.bytes();
        let mut head = RequestHead::default();
        prop_assert_eq!(head.advance(&bytes, &HeadLimits::default()), Ok(HeadProgress::Complete(bytes.len())));
        prop_assert_eq!(head.method_bytes(&bytes), made.method.as_bytes());
        prop_assert_eq!(head.path_and_query.of(&bytes), made.path.as_bytes());
        prop_assert_eq!(head.fields.len(), made.fields.len());

        // Bytes that are already in the buffer are left alone.
        let mut out = before.clone();
        let mut changed = RequestEdits::default();
        changed.fields = edits(&removed, made.fields.len(), &added);
        write_request(&mut out, &bytes, &head, &changed);
        let slash = if made.path.starts_with('/') { "" } else { "/" };
        let start = format!("{} {slash}{} HTTP/1.1", made.method, made.path);
        // If names with underscores are dropped, the other lines are unchanged.
        let mut strict = RequestHead::default();
        strict.drops_underscores = true;
        prop_assert_eq!(strict.advance(&bytes, &HeadLimits::default()), Ok(HeadProgress::Complete(bytes.len())));
        let name = |line: &[u8]| line.split(|byte| *byte == b':').next().unwrap_or_default().to_vec();
        let is_kept = |line: &&Vec<u8>| !name(line).contains(&b'_');
        let kept: Vec<Vec<u8>> = made.fields.iter().filter(is_kept).cloned().collect();
        prop_assert_eq!(strict.fields.dropped(), made.fields.len() - kept.len());
        let mut written = Vec::new();
        let mut changed = RequestEdits::default();
        changed.fields = edits(&removed, kept.len(), &added);
        write_request(&mut written, &bytes, &strict, &changed);
        let expected = lines(start.as_bytes(), &edited(&kept, &removed, &added));
        prop_assert_eq!(written.escape_ascii().to_string(), expected.escape_ascii().to_string());
        let expected = [before, lines(start.as_bytes(), &edited(&made.fields, &removed, &added))].concat();
        prop_assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn of_responses(
        made in response(),
        removed in vec(any::<bool>(), 16),
        added in added(),
        before in vec(any::<u8>(), 0..5),
    ) {
        let bytes = made.bytes();
        let mut head = ResponseHead::default();
        prop_assert_eq!(head.advance(&bytes, Method::Get, &HeadLimits::default()), Ok(HeadProgress::Complete(bytes.len())));
        prop_assert_eq!(head.status, made.status);
        prop_assert_eq!(head.reason.of(&bytes), made.reason.get(1..).unwrap_or_default());
        prop_assert_eq!(head.fields.len(), made.fields.len());

        let mut out = before.clone();
        let mut changed = ResponseEdits::default();
        changed.fields = edits(&removed, made.fields.len(), &added);
        write_response(&mut out, &bytes, &head, &changed, |_| "");
        let reason = if made.reason.is_empty() { b" " } else { &made.reason[..] };
        let start = [format!("HTTP/1.1 {}", made.status).as_bytes(), reason].concat();
        let expected = [before, lines(&start, &edited(&made.fields, &removed, &added))].concat();
        prop_assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }
}
