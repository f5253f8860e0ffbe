//! Limits the output and work of filling a template: a short template can become long, and a loop can do much work
//! without output.

use std::cell::Cell;

/// The limits of one template.
pub(super) struct Effort {
    /// Longest text: of the output, and of each intermediate text.
    text_bytes_max: usize,
    work_left: Cell<usize>,
}

impl Effort {
    pub(super) fn new(text_bytes_max: usize, work_max: usize) -> Effort {
        Effort { text_bytes_max, work_left: Cell::new(work_max) }
    }

    /// Counts work on so many bytes; the error is the template's.
    pub(super) fn work(&self, bytes: usize) -> Result<(), String> {
        let left = self.work_left.get().checked_sub(bytes);
        self.work_left.set(left.ok_or("the template takes too much work")?);
        Ok(())
    }

    /// Refuses a text that is too long, before it is built.
    pub(super) fn check_length(&self, bytes: usize) -> Result<(), String> {
        match bytes <= self.text_bytes_max {
            true => Ok(()),
            false => Err(format!("the template makes more than {} bytes", self.text_bytes_max)),
        }
    }

    /// Appends to the output.
    pub(super) fn append(&self, text: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        self.check_length(out.len() + text.len())?;
        self.work(text.len())?;
        out.extend_from_slice(text);
        Ok(())
    }

    /// Appends a text that `escape` makes longer, byte by byte.
    pub(super) fn append_escaped(
        &self,
        text: &[u8],
        escape: fn(&[u8], &mut Vec<u8>),
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        const PIECE_BYTES: usize = 4096;
        for piece in text.chunks(PIECE_BYTES) {
            let before = out.len();
            escape(piece, out);
            self.check_length(out.len())?;
            self.work(out.len() - before)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_work_are_bounded() {
        let (effort, mut out) = (Effort::new(10, 25), Vec::new());
        assert_eq!(effort.append(b"0123456", &mut out), Ok(()));
        assert!(effort.append(b"7890", &mut out).is_err_and(|why| why.contains("more than 10 bytes")));
        let doubled = |text: &[u8], out: &mut Vec<u8>| text.iter().for_each(|byte| out.extend([*byte; 2]));
        assert_eq!(effort.append_escaped(b"7", doubled, &mut out), Ok(()));
        assert!(effort.append_escaped(b"89", doubled, &mut out).is_err());
        assert_eq!(effort.work(12), Ok(()));
        assert!(effort.work(5).is_err_and(|why| why.contains("too much work")));
    }
}
