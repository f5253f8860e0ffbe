//! The clients and back-ends of all servers: the same threads, the same sockets, and only as much of each protocol as necessary.

use super::super::tunnels::websocket;
use super::Address;
use crate::Result;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

/// The message: valid JSON, as Stillgate's protocol requires.
pub(super) const BODY: &str = r#"{"on":true,"level":0.75,"until":"2030-01-01T00:00:00Z"}"#;

/// Longer responses are errors.
const PATIENCE: Duration = Duration::from_secs(30);

const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const PING: u8 = 0x9;

/// The protocol of a server.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// Bare frames.
    Stillgate,
    /// JSON; the client acknowledges each message.
    Acknowledged,
    Nchan,
    Pushpin,
    /// MQTT 3.1.1: published at QoS 1, so that the broker answers; delivered at QoS 0.
    Mqtt,
}

/// Connected clients, in one part per back-end.
pub(super) struct Clients {
    parts: Vec<Vec<Client>>,
    /// Number of requests of back-ends so far, for the order of clients.
    turn: usize,
}

struct Client {
    name: String,
    reader: BufReader<TcpStream>,
}

impl Clients {
    /// Connects them, with one thread per part.
    pub(super) fn open(address: &Address, prefix: &str, count: usize, parts: usize) -> Result<Clients> {
        let open = |part: usize| -> std::result::Result<Vec<Client>, String> {
            let numbers = (part..count).step_by(parts);
            let one = |number| {
                let name = format!("{prefix}{number:06}");
                Client::open(address, &name).map_err(|error| format!("client {name}: {error}"))
            };
            numbers.map(one).collect()
        };
        let parts = in_parallel(0..parts, open)?;
        Ok(Clients { parts, turn: 0 })
    }

    /// Sends about this many messages, one at a time from each back-end, each to the next client of its part; returns their number.
    pub(super) fn send(&mut self, address: &Address, messages: usize) -> Result<usize> {
        let (each, turn) = (messages / self.parts.len(), self.turn);
        let count = self.parts.len() * each;
        in_parallel(self.parts.iter_mut(), |part| {
            back_end(address, part, turn, each).map_err(|error| error.to_string())
        })?;
        self.turn += each;
        Ok(count)
    }
}

/// Runs work on all parts in parallel, with one thread each.
fn in_parallel<P: Send, T: Send>(
    parts: impl Iterator<Item = P>,
    work: impl Fn(P) -> std::result::Result<T, String> + Sync,
) -> Result<Vec<T>> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || work(part))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, std::result::Result<T, String>>| -> Result<T> {
            match thread.join() {
                Ok(done) => Ok(done?),
                Err(_) => Err("a client's thread panicked".into()),
            }
        };
        threads.into_iter().map(join).collect()
    })
}

fn back_end(address: &Address, part: &mut [Client], turn: usize, messages: usize) -> Result {
    let mut back_end = BackEnd::open(address)?;
    for number in turn..turn + messages {
        let at = number % part.len();
        let client = &mut part[at];
        back_end.begin(&client.name)?;
        if address.kind == Kind::Acknowledged {
            // The server's response waits for the client's acknowledgement.
            client.receive(address.kind)?;
            back_end.end()?;
        } else {
            back_end.end()?;
            client.receive(address.kind)?;
        }
    }
    Ok(())
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

impl Client {
    /// Connects a client that the server knows by its name.
    fn open(address: &Address, name: &str) -> Result<Client> {
        let stream = connect(address.clients)?;
        // An idle client holds no large buffer.
        let mut client = Client { name: name.to_owned(), reader: BufReader::with_capacity(512, stream) };
        if address.kind == Kind::Mqtt {
            client.write(&mqtt::connect(name))?;
            client.expect(&[0x20, 2, 0, 0], "CONNACK")?;
            client.write(&mqtt::subscribe(name))?;
            client.expect(&[0x90, 3, 0, 1, 0], "SUBACK")?;
            return Ok(client);
        }
        let request = websocket::request(&format!("/sub/{name}?device={name}"));
        let request = match address.kind {
            Kind::Acknowledged => request.replacen("\r\n", "\r\nSec-WebSocket-Protocol: stillgate.v1\r\n", 1),
            _ => request,
        };
        client.write(request.as_bytes())?;
        let head = read_head(&mut client.reader)?;
        if !websocket::is_answer(&head) {
            return Err(format!("the handshake was answered {head:?}").into());
        }
        if address.kind == Kind::Acknowledged {
            // The greeting.
            client.frame()?;
        }
        Ok(client)
    }

    fn write(&mut self, bytes: &[u8]) -> Result {
        Ok(self.reader.get_mut().write_all(bytes)?)
    }

    fn expect<const N: usize>(&mut self, expected: &[u8; N], what: &str) -> Result {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        if bytes == *expected { Ok(()) } else { Err(format!("{what}: {bytes:?}").into()) }
    }

    /// Receives the next message, which must be the one that was sent, and acknowledges it if required.
    fn receive(&mut self, kind: Kind) -> Result {
        let message = if kind == Kind::Mqtt { mqtt::message(&mut self.reader)? } else { self.frame()? };
        let text = String::from_utf8_lossy(&message);
        if !text.contains(BODY) {
            return Err(format!("received a message that was not sent: {text}").into());
        }
        if kind == Kind::Acknowledged {
            let (_, seq) = text.split_once("\"seq\":").ok_or("a message without a number")?;
            let seq: String = seq.chars().take_while(char::is_ascii_digit).collect();
            let ack = format!("{{\"type\":\"ack\",\"seq\":{seq}}}");
            self.write(&masked(TEXT, ack.as_bytes()))?;
        }
        Ok(())
    }

    /// Receives the next data frame; answers pings.
    fn frame(&mut self) -> Result<Vec<u8>> {
        loop {
            let mut head = [0; 2];
            self.reader.read_exact(&mut head)?;
            let length = match head[1] {
                126 => {
                    let mut long = [0; 2];
                    self.reader.read_exact(&mut long)?;
                    usize::from(u16::from_be_bytes(long))
                }
                short @ 0..=125 => usize::from(short),
                _ => return Err("a frame that is longer than any of ours, or masked".into()),
            };
            let mut payload = vec![0; length];
            self.reader.read_exact(&mut payload)?;
            match head[0] & 0xf {
                TEXT | BINARY => return Ok(payload),
                PING => self.write(&masked(websocket::PONG, &payload))?,
                other => return Err(format!("a frame with opcode {other:x}").into()),
            }
        }
    }
}

/// A short frame with a mask of zeros.
fn masked(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x80 | opcode, 0x80 | payload.len() as u8, 0, 0, 0, 0];
    bytes.extend_from_slice(payload);
    bytes
}

/// A connection that publishes.
struct BackEnd<'a> {
    address: &'a Address,
    reader: BufReader<TcpStream>,
}

impl BackEnd<'_> {
    fn open(address: &Address) -> Result<BackEnd<'_>> {
        let mut reader = BufReader::new(connect(address.back_ends)?);
        if address.kind == Kind::Mqtt {
            let name = format!("back-end-{}", reader.get_ref().local_addr()?.port());
            reader.get_mut().write_all(&mqtt::connect(&name))?;
            reader.read_exact(&mut [0; 4])?;
        }
        Ok(BackEnd { address, reader })
    }

    /// Sends.
    fn begin(&mut self, name: &str) -> Result {
        let request = match self.address.kind {
            Kind::Mqtt => {
                return Ok(self.reader.get_mut().write_all(&mqtt::publish(name, BODY))?);
            }
            Kind::Stillgate => post(&format!("/v1/devices/{name}/messages?ack=written"), BODY),
            Kind::Acknowledged => post(&format!("/v1/devices/{name}/messages?ack=device"), BODY),
            Kind::Nchan => post(&format!("/pub/{name}"), BODY),
            Kind::Pushpin => {
                let content = BODY.replace('"', "\\\"");
                let item =
                    format!("{{\"channel\":\"{name}\",\"formats\":{{\"ws-message\":{{\"content\":\"{content}\"}}}}}}");
                post("/publish/", &format!("{{\"items\":[{item}]}}"))
            }
        };
        Ok(self.reader.get_mut().write_all(request.as_bytes())?)
    }

    /// Waits for the server's response.
    fn end(&mut self) -> Result {
        if self.address.kind == Kind::Mqtt {
            let mut ack = [0; 4];
            self.reader.read_exact(&mut ack)?;
            return if ack[..2] == [0x40, 2] { Ok(()) } else { Err(format!("PUBACK: {ack:?}").into()) };
        }
        let head = read_head(&mut self.reader)?;
        let lower = head.to_ascii_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        let mut body = vec![0; length.ok_or_else(|| format!("an answer without a length: {head}"))?];
        self.reader.read_exact(&mut body)?;
        // Pushpin closes the connection after each response.
        if lower.contains("\r\nconnection: close\r\n") {
            self.reader = BufReader::new(connect(self.address.back_ends)?);
        }
        match head.starts_with("HTTP/1.1 20") {
            true => Ok(()),
            false => Err(format!("{head}{}", String::from_utf8_lossy(&body)).into()),
        }
    }
}

fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn read_head(reader: &mut impl BufRead) -> Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Err(format!("closed after {head:?}").into());
        }
    }
    Ok(head)
}

/// The part of MQTT 3.1.1 that a subscriber and a publisher need; every packet is shorter than 128 bytes.
mod mqtt {
    use crate::Result;
    use std::io::Read;

    /// A clean session, no keep-alive.
    pub(super) fn connect(name: &str) -> Vec<u8> {
        packet(0x10, &[b"\0\x04MQTT\x04\x02\0\0", string(name).as_slice()])
    }

    /// Subscribes to the topic of a client at QoS 0; packet 1.
    pub(super) fn subscribe(name: &str) -> Vec<u8> {
        packet(0x82, &[&[0, 1], string(&topic(name)).as_slice(), &[0]])
    }

    /// Publishes at QoS 1; always packet 1, since only one is in flight at a time.
    pub(super) fn publish(name: &str, body: &str) -> Vec<u8> {
        packet(0x32, &[string(&topic(name)).as_slice(), &[0, 1], body.as_bytes()])
    }

    /// The payload of a PUBLISH with QoS 0.
    pub(super) fn message(reader: &mut impl Read) -> Result<Vec<u8>> {
        let mut head = [0; 2];
        reader.read_exact(&mut head)?;
        if head[0] != 0x30 || head[1] > 127 {
            return Err(format!("not a short message of QoS 0: {head:?}").into());
        }
        let mut rest = vec![0; usize::from(head[1])];
        reader.read_exact(&mut rest)?;
        let topic = rest.first_chunk::<2>().map_or(0, |length| usize::from(u16::from_be_bytes(*length)));
        Ok(rest.get(2 + topic..).ok_or("a message without a topic")?.to_vec())
    }

    fn topic(name: &str) -> String {
        format!("d/{name}")
    }

    fn string(text: &str) -> Vec<u8> {
        [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat()
    }

    fn packet(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
        let body = parts.concat();
        assert!(body.len() < 128, "a length of one byte");
        [&[kind, body.len() as u8], body.as_slice()].concat()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn packets_are_as_the_standard_has_them() {
            assert_eq!(connect("d1"), b"\x10\x0e\0\x04MQTT\x04\x02\0\0\0\x02d1");
            assert_eq!(subscribe("d1"), b"\x82\x09\0\x01\0\x04d/d1\0");
            assert_eq!(publish("d1", "hi"), b"\x32\x0a\0\x04d/d1\0\x01hi");
            assert_eq!(message(&mut b"\x30\x08\0\x04d/d1hi".as_slice()).unwrap(), b"hi");
            assert!(message(&mut b"\x90\x03".as_slice()).is_err());
        }
    }
}
