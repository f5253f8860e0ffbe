//! Reads the lines of a log one by one in bounded memory, whatever the file contains.

use std::io::{self, BufRead, BufReader, ErrorKind, Read};

/// The longest line that is parsed. Longer ones are skipped and reported.
pub(super) const LINE_BYTES_MAX: usize = 1024 * 1024;

/// The number of bytes within which an overlong line must end. Input without any line end, such as `/dev/zero`, is not a log.
const LINE_END_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The number of lines among which there must be a request. Input without any, such as the output of `yes`, is not a log.
pub(super) const LINES_WITHOUT_REQUEST_MAX: u64 = 1_000_000;

const BUFFER_BYTES: usize = 256 * 1024;

/// Reads lines.
pub(super) struct LogLines<R> {
    file: BufReader<R>,
    line: Vec<u8>,
    number: u64,
    bytes: u64,
}

/// One line, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RawLine<'a> {
    /// Nothing but blanks.
    Blank,
    /// More than [`LINE_BYTES_MAX`] bytes.
    TooLong,
    /// Anything else.
    Text(&'a [u8]),
}

impl<R: Read> LogLines<R> {
    pub(super) fn new(file: R) -> LogLines<R> {
        LogLines { file: BufReader::with_capacity(BUFFER_BYTES, file), line: Vec::new(), number: 0, bytes: 0 }
    }

    /// Whether the input is gzip (RFC 1952) instead of text. Call it first.
    pub(super) fn are_compressed(&mut self) -> io::Result<bool> {
        const MAGIC: &[u8] = &[0x1f, 0x8b];
        Ok(self.file.fill_buf()?.starts_with(MAGIC))
    }

    /// The next line with its number, from 1.
    pub(super) fn next(&mut self) -> io::Result<Option<(u64, RawLine<'_>)>> {
        const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
        self.line.clear();
        let read = self.file.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut self.line)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.bytes += read as u64;
        let is_whole = self.line.ends_with(b"\n");
        if read > LINE_BYTES_MAX && !is_whole {
            let skipped = self.file.by_ref().take(LINE_END_BYTES_MAX).skip_until(b'\n')? as u64;
            if skipped == LINE_END_BYTES_MAX {
                let why = format!("line {} has no end within 64 MiB, so this is not a log", self.number);
                return Err(io::Error::new(ErrorKind::InvalidData, why));
            }
            self.bytes += skipped;
            return Ok(Some((self.number, RawLine::TooLong)));
        }
        let text = match self.number {
            1 => self.line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&self.line),
            _ => &self.line,
        };
        let text = text.trim_ascii();
        Ok(Some((self.number, if text.is_empty() { RawLine::Blank } else { RawLine::Text(text) })))
    }

    /// The number of bytes read.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_an_end_is_an_error() {
        let mut lines = LogLines::new(b"a\n".chain(io::repeat(0)));
        assert_eq!(lines.next().unwrap(), Some((1, RawLine::Text(b"a"))));
        assert_eq!(lines.next().unwrap_err().to_string(), "line 2 has no end within 64 MiB, so this is not a log");
    }

    #[test]
    fn lines_of_any_file() {
        let long = vec![b'x'; LINE_BYTES_MAX];
        let longer = [&long[..], b"xx"].concat();
        let file = [b"\xef\xbb\xbfa\r\n\r\n\nb\n", &long[..], b"\n", &longer, b"\nc\n", &longer].concat();
        let mut lines = LogLines::new(&file[..]);
        let mut check = |expected: RawLine<'_>| {
            let (number, line) = lines.next().unwrap().unwrap();
            assert!(line == expected, "line {number}");
        };
        check(RawLine::Text(b"a"));
        check(RawLine::Blank);
        check(RawLine::Blank);
        check(RawLine::Text(b"b"));
        check(RawLine::Text(&long));
        check(RawLine::TooLong);
        check(RawLine::Text(b"c"));
        check(RawLine::TooLong);
        assert_eq!(lines.next().unwrap(), None);
        assert_eq!(lines.bytes(), file.len() as u64);
        assert_eq!(LogLines::new(&b""[..]).next().unwrap(), None);
    }
}
