//! The known word that an unknown one was probably meant to be.

/// The known word with the fewest edits, if they are few for the word's length; of several the first by alphabet.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const WORD_BYTES_MAX: usize = 64;
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    let word = word.trim().to_ascii_lowercase();
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&word, &candidate.to_ascii_lowercase()), candidate))
        // As many edits as letters would be another word.
        .filter(|(edits, candidate)| *edits < candidate.len() && *edits <= candidate.len().max(word.len()).div_ceil(3))
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant() {
        for (word, want) in [
            ("wieght", Some("weight")),
            ("Method", Some("method")),
            ("header", Some("headers")),
            ("uri", Some("url")),
            ("zzz", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, ["weight", "method", "headers", "url"]), want, "{word}");
        }
    }
}
