//! Sorts many label texts, which share long prefixes.
//!
//! A comparison sort would read two texts, far apart in memory, for each of its comparisons. This one reads eight bytes
//! of every text in turn, sorts by these, and continues with the texts that are equal so far.

/// A text by its number, and the eight bytes of it that are compared.
#[derive(Debug, Clone, Copy)]
struct SortKey {
    bytes: u64,
    item: u32,
}

const STEP: usize = 8;
/// Fewer texts than this are sorted by plain comparison.
const FEW: usize = 12;

/// Sorts items by their texts, bytewise.
pub(super) fn sort_by_text<'a>(items: &mut [u32], text: impl Fn(u32) -> &'a [u8]) {
    let mut keys: Vec<SortKey> = items.iter().map(|item| SortKey { bytes: 0, item: *item }).collect();
    // Ranges of texts that are equal up to a depth.
    let mut open = vec![(0, keys.len(), 0)];
    while let Some((from, to, depth)) = open.pop().filter(|(from, to, _)| from < to) {
        let range = &mut keys[from..to];
        let depth = depth + common(range, depth, &text);
        let mut ends = false;
        for key in range.iter_mut() {
            let rest = rest(text(key.item), depth);
            ends |= rest.len() < STEP;
            key.bytes = leading(rest);
        }
        // Zeros that pad a short text look like zeros in a text: these are compared in full.
        if range.len() <= FEW || (ends && range.iter().all(|key| key.bytes == range[0].bytes)) {
            range.sort_unstable_by(|a, b| {
                a.bytes.cmp(&b.bytes).then_with(|| rest(text(a.item), depth).cmp(rest(text(b.item), depth)))
            });
            continue;
        }
        range.sort_unstable_by_key(|key| key.bytes);
        let mut start = 0;
        for end in 1..=range.len() {
            if end == range.len() || range[end].bytes != range[start].bytes {
                if end - start > 1 {
                    // Not a step further, because of texts that end: `common` skips it.
                    open.push((from + start, from + end, depth));
                }
                start = end;
            }
        }
    }
    items.iter_mut().zip(&keys).for_each(|(item, key)| *item = key.item);
}

/// Number of further bytes that all of them share.
fn common<'a>(range: &[SortKey], depth: usize, text: &impl Fn(u32) -> &'a [u8]) -> usize {
    let first = rest(text(range[0].item), depth);
    range[1..].iter().fold(first.len(), |common, key| {
        let other = rest(text(key.item), depth);
        if common <= other.len() && first[..common] == other[..common] {
            return common;
        }
        first[..common].iter().zip(other).take_while(|(a, b)| a == b).count()
    })
}

fn rest(text: &[u8], depth: usize) -> &[u8] {
    text.get(depth..).unwrap_or(&[])
}

/// The first eight bytes, padded with zeros, so that numbers compare as texts do.
fn leading(text: &[u8]) -> u64 {
    match text.first_chunk() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let mut bytes = [0; STEP];
            bytes[..text.len()].copy_from_slice(text);
            u64::from_be_bytes(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sorted(texts: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut items: Vec<u32> = (0..texts.len() as u32).collect();
        sort_by_text(&mut items, |item| &texts[item as usize]);
        items.iter().map(|item| texts[*item as usize].clone()).collect()
    }

    proptest! {
        #[test]
        fn as_a_plain_sort_does(
            texts in prop::collection::vec(
                (0usize..3, prop::collection::vec(prop_oneof![Just(0u8), Just(b'a'), Just(b'b')], 0..30)), 0..200,
            ),
        ) {
            let prefixes: [&[u8]; 3] = [b"", b"a common beginning", b"a common beginning\0\0"];
            let texts: Vec<Vec<u8>> =
                texts.into_iter().map(|(prefix, rest)| [prefixes[prefix], &rest].concat()).collect();
            let mut plain = texts.clone();
            plain.sort();
            prop_assert_eq!(sorted(&texts), plain);
        }
    }

    #[test]
    fn hardly_different_texts() {
        let mut texts: Vec<Vec<u8>> = (0..100).map(|zeros| [b"x".as_slice(), &vec![0; zeros]].concat()).collect();
        let expected = texts.clone();
        texts.reverse();
        assert_eq!(sorted(&texts), expected);
        assert_eq!(sorted(&vec![b"same".to_vec(); 50]).len(), 50);
    }
}
