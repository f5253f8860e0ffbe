//! Reads responses and counts the bytes of their bodies, with either framing, without keeping them.

use crate::Result;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The longest silence before an error.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
const BUFFER_BYTES: usize = 256 * 1024;
/// Bytes of the beginning of a body that are kept.
const BEGINNING_BYTES: usize = 16;

/// A kept connection.
pub(super) struct Reader {
    stream: BufReader<TcpStream>,
}

/// The response to one request.
pub(super) struct Received {
    pub(super) status: u16,
    pub(super) bytes: u64,
    pub(super) beginning: Vec<u8>,
    /// Why the body ended early.
    pub(super) cut: Option<String>,
}

impl Reader {
    pub(super) fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STALL_TIMEOUT))?;
        Ok(Self { stream: BufReader::with_capacity(BUFFER_BYTES, stream) })
    }

    /// Requests `path`; a body that ends early is not an error.
    pub(super) fn get(&mut self, path: &str) -> Result<Received> {
        write!(self.stream.get_mut(), "GET {path} HTTP/1.1\r\nHost: body.example\r\n\r\n")?;
        let line = self.line()?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| format!("not a status line: {line:?}"))?;
        let mut length = None;
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.trim().parse()?);
            }
        }
        let mut received = Received { status, bytes: 0, beginning: Vec::new(), cut: None };
        let body = match length {
            Some(length) => self.skip(length, &mut received),
            None => self.skip_chunks(&mut received),
        };
        received.cut = body.err().map(|error| error.to_string());
        Ok(received)
    }

    fn skip_chunks(&mut self, received: &mut Received) -> Result {
        loop {
            let line = self.line()?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = u64::from_str_radix(size, 16).map_err(|error| format!("chunk size {line:?}: {error}"))?;
            self.skip(size, received)?;
            if !self.line()?.is_empty() {
                return Err("a chunk or the trailers do not end with an empty line".into());
            }
            if size == 0 {
                return Ok(());
            }
        }
    }

    fn skip(&mut self, bytes: u64, received: &mut Received) -> Result {
        let mut left = bytes;
        while left > 0 {
            let buffer = self.stream.fill_buf()?;
            if buffer.is_empty() {
                return Err(format!("closed after {} bytes", received.bytes).into());
            }
            let part = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
            let wanted = BEGINNING_BYTES.saturating_sub(received.beginning.len()).min(part);
            received.beginning.extend_from_slice(&buffer[..wanted]);
            self.stream.consume(part);
            received.bytes += part as u64;
            left -= part as u64;
        }
        Ok(())
    }

    /// The next line without its end.
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err("closed before the end of an answer".into());
        }
        Ok(line.trim_end().to_owned())
    }
}
