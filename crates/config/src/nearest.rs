//! Finds the known word that an unknown one was probably meant to be.

/// The known word with the fewest edits, if they are few for the word's length; of several the first by alphabet.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const WORD_CHARS_MAX: usize = 40;
    let word: Vec<char> = word.chars().take(WORD_CHARS_MAX + 1).collect();
    if word.len() > WORD_CHARS_MAX {
        return None;
    }
    known
        .into_iter()
        .map(|candidate| (distance(&word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().max(word.len()).div_ceil(3))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, replacements and swaps of neighbours; case and `-` for `_` are free.
fn distance(word: &[char], candidate: &str) -> usize {
    let fold = |c: char| if c == '-' { '_' } else { c.to_ascii_lowercase() };
    let a: Vec<char> = word.iter().map(|c| fold(*c)).collect();
    let b: Vec<char> = candidate.chars().map(fold).collect();
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant() {
        let known = ["uri", "uris", "upstream", "upstream_id", "methods", "priority"];
        for (word, want) in [
            ("url", Some("uri")),
            ("upstreamid", Some("upstream_id")),
            ("upstream-id", Some("upstream_id")),
            ("Methods", Some("methods")),
            ("method", Some("methods")),
            ("priorty", Some("priority")),
            ("priroity", Some("priority")),
            ("zzz", None),
            ("", None),
            ("completely_different", None),
        ] {
            assert_eq!(nearest(word, known), want, "{word}");
        }
    }
}
