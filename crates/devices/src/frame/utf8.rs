//! Incremental check of UTF-8: the first byte that no valid text could have there is an error, however the text is
//! split.

/// The state between two pieces: the beginning of a character, three bytes at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Utf8 {
    begun: [u8; 4],
    len: u8,
}

/// Bytes that are not UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InvalidUtf8;

impl Utf8 {
    /// Whether the text may end here.
    pub(super) fn is_complete(self) -> bool {
        self.len == 0
    }

    /// Checks the next piece.
    pub(super) fn check(&mut self, mut piece: &[u8]) -> Result<(), InvalidUtf8> {
        while self.len > 0 {
            let Some((first, rest)) = piece.split_first() else { return Ok(()) };
            piece = rest;
            self.begun[usize::from(self.len)] = *first;
            self.len += 1;
            match std::str::from_utf8(&self.begun[..usize::from(self.len)]) {
                Ok(_) => self.len = 0,
                Err(error) if error.error_len().is_some() => return Err(InvalidUtf8),
                Err(_) => {}
            }
        }
        let Err(error) = std::str::from_utf8(piece) else { return Ok(()) };
        if error.error_len().is_some() {
            return Err(InvalidUtf8);
        }
        let begun = &piece[error.valid_up_to()..];
        self.begun[..begun.len()].copy_from_slice(begun);
        self.len = begun.len() as u8;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The index of the first byte that is refused, fed in pieces of these lengths.
    fn refused_at(bytes: &[u8], step: usize) -> Option<usize> {
        let mut utf8 = Utf8::default();
        bytes.chunks(step).enumerate().find_map(|(index, piece)| utf8.check(piece).err().map(|InvalidUtf8| index))
    }

    #[test]
    fn the_first_impossible_byte_is_refused() {
        for (bytes, at) in [
            (&b"\xce\xba\xe1\xbd\xb9\xed\xa0\x80"[..], Some(6)),
            (b"\xf4\x90\x80\x80", Some(1)),
            (b"\xc0\x80", Some(0)),
            (b"\xe2\x82\xac", None),
            (b"\xf0\x9f\x98\x80", None),
            (b"a\x80", Some(1)),
            (b"\xf0\x9f\x98a", Some(3)),
        ] {
            assert_eq!(refused_at(bytes, 1), at, "{bytes:x?}");
        }
    }

    proptest! {
        #[test]
        fn splits_do_not_matter(mut bytes in prop::collection::vec(any::<u8>(), 0..8), text in ".{0,6}", step in 1usize..9) {
            bytes.splice(0..0, text.bytes());
            let valid = std::str::from_utf8(&bytes).is_ok();
            let mut utf8 = Utf8::default();
            let checked = bytes.chunks(step).all(|piece| utf8.check(piece).is_ok());
            prop_assert_eq!(checked && utf8.is_complete(), valid);
        }
    }
}
