//! The requests that a function is checked with: one `METHOD URL` a line, or lines of an access log.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use stillgate_files::read_bounded;
use stillgate_replay::explain::request_head::RequestHead;
use stillgate_replay::explain::request_line::RequestLine;
use stillgate_replay::replay::LogReader;

/// Requests that are kept of a file; more of them would not make a function warmer.
const REQUESTS_MAX: usize = 10_000;
const FILE_BYTES_MAX: usize = 64 << 20;

/// Reads `METHOD URL` lines. What follows a `#` at the beginning of a line is a comment.
pub(super) fn lines(file: &Path) -> Result<Vec<RequestHead>, String> {
    let bytes =
        read_bounded(file, FILE_BYTES_MAX).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let mut heads = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || heads.len() == REQUESTS_MAX {
            continue;
        }
        let wrong = |why: String| format!("{}:{}: {why}", file.display(), at + 1);
        let asked: RequestLine = line.parse().map_err(wrong)?;
        let head = RequestHead {
            method: asked.method,
            scheme: asked.scheme,
            authority: asked.authority.unwrap_or_else(|| "localhost".to_owned()),
            target: asked.target,
            headers: [("User-Agent", "stillgate-lua-check"), ("Accept", "*/*")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..RequestHead::new(IpAddr::V4(Ipv4Addr::LOCALHOST))
        };
        if let Some(flaw) = head.flaw() {
            return Err(wrong(flaw));
        }
        heads.push(head);
    }
    match heads.is_empty() {
        true => Err(format!("{}: there is no request in it", file.display())),
        false => Ok(heads),
    }
}

/// Reads an access log of JSON objects, as far as lines hold a request.
pub(super) fn log(file: &Path) -> Result<Vec<RequestHead>, String> {
    LogReader::read(file, REQUESTS_MAX).map_err(|error| error.to_string())
}
