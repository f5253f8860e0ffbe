//! A plain HTTP/1.1 client: blocking, one request at a time, on a connection that is kept.
//!
//! It is for what experiments do beside the load: scrapes, writes to an admin interface, a look at whether a change is served.

use crate::error::{Error, Result};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};
use stillgate_wire::{BodyDecoder, HeadLimits, HeadProgress, Method, ResponseHead};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest silence before a response is given up.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval of polls, which limits the precision of the times until something is served.
const POLL: Duration = Duration::from_millis(1);
/// Bytes per read: an exposition of a million series is tens of megabytes.
const BUFFER_BYTES: usize = 256 * 1024;
/// The most bytes of a body that is kept.
const BODY_BYTES_MAX: usize = 1 << 30;

/// A part of a response as it arrives.
pub(crate) enum Part<'a> {
    Head(&'a ResponseHead),
    /// A piece of the content, still encoded.
    Body(&'a [u8]),
}

/// Why there is no response.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) message: String,
    /// A response was due, and it broke off or never came.
    pub(crate) broke_off: bool,
}

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Failure { message, broke_off: false }
    }
}

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    /// Fails with the content of a response of another status.
    pub(crate) fn expect(self, status: u16, what: &str) -> Result<Reply> {
        match self.status == status {
            true => Ok(self),
            false => Err(Error::new(format!("{what}: {} {}", self.status, String::from_utf8_lossy(&self.body).trim()))),
        }
    }
}

/// Opens a connection on which a read fails after this long without a byte.
pub(crate) fn connect(address: SocketAddr, silence: Duration) -> Result<TcpStream, String> {
    let open = || {
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(silence)).map(|()| stream)
    };
    open().map_err(|error| format!("cannot connect: {error}"))
}

/// Reads one response, and adds its bytes to `bytes`; whatever `see` refuses ends it. Returns whether the connection is kept.
pub(crate) fn receive(
    stream: &mut TcpStream,
    bytes: &mut u64,
    see: &mut dyn FnMut(Part<'_>) -> Result<(), String>,
) -> Result<bool, Failure> {
    let broke_off = |message| Failure { message, broke_off: true };
    let (mut buffer, mut filled) = (vec![0; BUFFER_BYTES], 0);
    let (mut head, mut body) = (ResponseHead::default(), None::<BodyDecoder>);
    loop {
        let read = match stream.read(&mut buffer[filled..]) {
            Ok(read) => read,
            Err(error) => return Err(broke_off(format!("cut off after {bytes} bytes: {error}"))),
        };
        *bytes += read as u64;
        if read == 0 {
            return match body {
                Some(BodyDecoder::UntilClose) => Ok(false),
                _ => Err(broke_off(format!("cut off after {bytes} bytes"))),
            };
        }
        filled += read;
        let mut from = 0;
        if body.is_none() {
            match head.advance(&buffer[..filled], Method::Get, &HeadLimits::default()) {
                Ok(HeadProgress::Partial) => continue,
                Ok(HeadProgress::Complete(length)) => from = length,
                Err(error) => return Err(format!("not an HTTP answer: {error:?}").into()),
            }
            see(Part::Head(&head))?;
        }
        let decoder = body.get_or_insert_with(|| BodyDecoder::new(head.framing));
        let decoded = decoder.decode(&mut buffer[from..filled]);
        let decoded = decoded.map_err(|error| broke_off(format!("a bad body: {error:?}")))?;
        see(Part::Body(&buffer[from..from + decoded.data]))?;
        // The decoder consumes everything, unless the body is complete.
        filled = 0;
        if decoder.is_done() {
            return Ok(head.keep_alive);
        }
    }
}

/// A connection to one server, opened again when it has ended.
#[derive(Debug)]
pub(crate) struct Client {
    address: SocketAddr,
    stream: Option<TcpStream>,
    /// The last request, for messages.
    subject: String,
    /// Bytes of its response so far.
    bytes: u64,
}

impl Client {
    /// A client that has not connected yet.
    pub(crate) fn new(address: SocketAddr) -> Client {
        Client { address, stream: None, subject: String::new(), bytes: 0 }
    }

    pub(crate) fn get(&mut self, path: &str) -> Result<Reply> {
        self.send("GET", path, "", "")
    }

    /// Sends one request; `fields` are whole lines. What a server does not see, because it closed an idle connection, is sent
    /// again.
    pub(crate) fn send(&mut self, method: &str, path: &str, fields: &str, body: &str) -> Result<Reply> {
        let was_open = self.stream.is_some();
        let sent = self.begin(method, path, fields, body).and_then(|()| self.end());
        match sent {
            Err(_) if was_open && self.bytes == 0 && method != "POST" => {
                self.begin(method, path, fields, body)?;
                self.end()
            }
            sent => sent,
        }
    }

    /// Sends one request, whose response [`Client::end`] reads.
    pub(crate) fn begin(&mut self, method: &str, path: &str, fields: &str, body: &str) -> Result {
        let address = self.address;
        self.bytes = 0;
        self.subject = format!("{method} http://{address}{path}");
        let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        let request = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n{length}{fields}\r\n{body}");
        let stream = match self.stream.take() {
            Some(stream) => Ok(stream),
            None => connect(address, SILENCE_TIMEOUT),
        };
        let sent = stream.and_then(|mut stream| match stream.write_all(request.as_bytes()) {
            Ok(()) => Ok(stream),
            Err(error) => Err(format!("cannot send the request: {error}")),
        });
        self.stream = Some(sent.map_err(|message| self.error_with_address(&message))?);
        Ok(())
    }

    /// Reads the response to the request that was begun.
    pub(crate) fn end(&mut self) -> Result<Reply> {
        let Some(mut stream) = self.stream.take() else { return Err(self.error_with_address("no request was sent")) };
        let mut reply = Reply { status: 0, body: Vec::new() };
        let received = receive(&mut stream, &mut self.bytes, &mut |part| {
            match part {
                Part::Head(head) => reply.status = head.status,
                Part::Body(body) if reply.body.len() + body.len() <= BODY_BYTES_MAX => reply.body.extend(body),
                Part::Body(_) => return Err("a body of more than 1 GiB".to_owned()),
            }
            Ok(())
        });
        match received {
            Ok(is_kept) => {
                self.stream = is_kept.then_some(stream);
                Ok(reply)
            }
            Err(failure) => Err(self.error_with_address(&failure.message)),
        }
    }

    fn error_with_address(&self, message: &str) -> Error {
        Error::new(format!("{}: {message}", self.subject))
    }

    /// Waits until a path is answered with 200.
    pub(crate) fn wait_for(&mut self, path: &str, timeout: Duration) -> Result {
        let begin = Instant::now();
        while self.get(path)?.status != 200 {
            if begin.elapsed() > timeout {
                return Err(Error::new(format!("http://{}{path} is not served after {timeout:?}", self.address)));
            }
            sleep(POLL);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::net::TcpListener;

    /// Answers one request on each connection in turn with these, then closes it.
    fn serve(answers: &'static [&'static [&'static str]]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for answers in answers {
                let mut stream = BufReader::new(listener.accept().unwrap().0);
                for answer in *answers {
                    let mut line = String::new();
                    while line != "\r\n" {
                        line.clear();
                        stream.read_line(&mut line).unwrap();
                    }
                    stream.get_mut().write_all(answer.as_bytes()).unwrap();
                }
            }
        });
        address
    }

    #[test]
    fn a_connection_is_kept_and_opened_again() {
        const ONE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none";
        const LAST: &str = "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 4\r\n\r\nlast";
        // The first connection ends without a word after two answers, the second with one.
        let mut client = Client::new(serve(&[&[ONE, ONE], &[LAST], &[ONE]]));
        let mut ask = || client.get("/").map(|reply| (reply.status, String::from_utf8(reply.body).unwrap())).unwrap();
        assert_eq!(ask(), (200, "one".to_owned()));
        assert_eq!(ask(), (200, "one".to_owned()));
        assert_eq!(ask(), (404, "last".to_owned()));
        assert_eq!(ask(), (200, "one".to_owned()));
    }

    #[test]
    fn what_goes_wrong_is_said_with_its_place() {
        let address = serve(&[&["HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nx"]]);
        let error = Client::new(address).get("/a").unwrap_err().to_string();
        assert_eq!(error, format!("GET http://{address}/a: cut off after 39 bytes"));
        let refused = Reply { status: 403, body: b"no key\n".to_vec() };
        assert_eq!(refused.expect(200, "the write").unwrap_err().to_string(), "the write: 403 no key");
    }
}
