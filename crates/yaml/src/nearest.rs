//! Finds the known word that an unknown one was probably meant to be.

/// The known word with the fewest edits, if they are few for the word's length; among several the first by
/// alphabet. Case, `-` for `_`, and blanks around it are ignored.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const WORD_BYTES_MAX: usize = 80;
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    let fold = |word: &str| word.trim().to_ascii_lowercase().replace('-', "_");
    let word = fold(word);
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&word, &fold(candidate)), candidate))
        .filter(|(distance, candidate)| {
            // A word without a common character is not a guess.
            *distance < candidate.len() && *distance <= candidate.len().max(word.len()).div_ceil(3)
        })
        .min()
        .map(|(_, candidate)| candidate)
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
            (" priority ", Some("priority")),
            ("priorty", Some("priority")),
            ("priroity", Some("priority")),
            ("zzz", None),
            ("", None),
            ("u", None),
            ("completely_different", None),
        ] {
            assert_eq!(nearest(word, known), want, "{word}");
        }
    }
}
