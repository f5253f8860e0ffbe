//! Observes what the gateway serves: its answers, and when a change of the file takes effect.

use crate::Result;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The polling interval, which limits the precision of the figures.
const LOOK: Duration = Duration::from_millis(1);
const BODY_BYTES_MAX: usize = 64 * 1024;

/// A connection for consecutive requests.
pub(super) struct Asker {
    address: SocketAddr,
    stream: BufReader<TcpStream>,
}

/// A response.
pub(super) struct Answer {
    pub(super) status: u16,
    /// Names in lower case.
    fields: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    /// The value of a header, by its name in lower case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.fields.iter().find_map(|(own, value)| (own == name).then_some(value.as_str()))
    }
}

impl Asker {
    pub(super) fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self { address, stream: BufReader::new(stream) })
    }

    /// Requests `path` with further request headers.
    pub(super) fn get(&mut self, path: &str, headers: &[String]) -> Result<Answer> {
        self.ask("GET", path, headers)
    }

    /// Sends a request for `path` with further request headers.
    pub(super) fn ask(&mut self, method: &str, path: &str, headers: &[String]) -> Result<Answer> {
        self.request(method, path, headers, "")
    }

    /// Sends one request; bodies of responses have a length or are chunked, without trailers.
    pub(super) fn request(&mut self, method: &str, path: &str, headers: &[String], body: &str) -> Result<Answer> {
        let mut lines: String = headers.iter().flat_map(|line| [line, "\r\n"]).collect();
        if !body.is_empty() {
            lines.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        // The admin address accepts only its own host names.
        let host = self.address;
        let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n{body}");
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| format!("not a status line: {line:?}"))?;
        let (mut length, mut closes, mut is_chunked) = (0, false, false);
        let mut fields = Vec::new();
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse()?;
            }
            is_chunked |= name.eq_ignore_ascii_case("transfer-encoding");
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            closes |= name.eq_ignore_ascii_case("connection") && value.trim().eq_ignore_ascii_case("close");
        }
        if length > BODY_BYTES_MAX {
            return Err(format!("a body of {length} bytes").into());
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        while is_chunked {
            line.clear();
            self.stream.read_line(&mut line)?;
            let length = usize::from_str_radix(line.trim_end(), 16)?;
            let begin = body.len();
            // Including the line break after it.
            body.resize(begin + length.min(BODY_BYTES_MAX) + 2, 0);
            self.stream.read_exact(&mut body[begin..])?;
            body.truncate(begin + length);
            is_chunked = length > 0 && body.len() <= BODY_BYTES_MAX;
        }
        if closes {
            *self = Self::connect(self.address)?;
        }
        Ok(Answer { status, fields, body })
    }

    /// Waits until a path is answered with 200 for these request headers.
    pub(super) fn wait_for(&mut self, path: &str, headers: &[String]) -> Result {
        let begin = Instant::now();
        while self.get(path, headers)?.status != 200 {
            if begin.elapsed() > ANSWER_TIMEOUT {
                return Err(format!("{path} is not served after {ANSWER_TIMEOUT:?}").into());
            }
            sleep(LOOK);
        }
        Ok(())
    }
}
