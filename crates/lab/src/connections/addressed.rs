//! Connections that back-ends can address by a name: servers, each set up as its manual advises for many idle
//! connections, with one worker and no logs; and their clients and back-ends, which are the same threads and sockets
//! for all.
//!
//! A back-end waits for the server's answer and for the message at its client before it sends the next. These are not
//! the same products: docs/devices-scale.md says what each of them lacks.
//!
//! Of MQTT 3.1.1 there is the part that a subscriber and a publisher need; every packet is shorter than 128 bytes.

use super::{Clients, MessagePace, MessageTotals};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::target::{Spec, TargetKind};
use crate::websocket::{self, Opcode, Sender};
use std::io::{self, BufRead, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The message: valid JSON, as stillgate's protocol requires.
const BODY: &str = r#"{"on":true,"level":0.75,"until":"2030-01-01T00:00:00Z"}"#;
/// Longer responses are errors.
const PATIENCE: Duration = Duration::from_secs(30);
/// Threads that open connections.
const OPENERS: usize = 32;
/// Connections of a server besides its clients.
const OTHER_CONNECTIONS: usize = 1_000;

/// What a server and its clients say to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Stillgate's bare frames.
    Raw,
    /// Stillgate's JSON; the client acknowledges each message.
    Acknowledged,
    Nchan,
    Pushpin,
    /// MQTT 3.1.1: published at QoS 1, so that the broker answers; delivered at QoS 0.
    Mqtt,
}

/// A server whose clients have names.
#[derive(Debug)]
pub(crate) struct AddressedServer {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    pub(crate) dialect: Dialect,
    kind: TargetKind,
    /// The command of [`TargetKind::Command`].
    command: &'static str,
    /// Its configuration; `{connections}` is filled in, besides what a configuration always has.
    configuration: &'static str,
}

const STILLGATE: &str = "gateway:\n  workers: 1\n  listeners: [{address: \"{address}\"}]\n  devices: {node: a, address: \"{admin}\"}\n  \
    metrics: {enabled: false}\n  limits: {connections_per_worker: {connections}}\n\
    routes: [{id: devices, uri: /sub/*, plugins: {device-gateway: {id: $arg_device, protocol: {protocol}}}}]\n";

/// Messages go to connected clients only, as with the others; nothing is kept for later.
const NCHAN: &str = "load_module /usr/lib/nginx/modules/ngx_nchan_module.so; worker_processes 1; daemon off; pid {dir}/nginx.pid;\n\
    error_log stderr; events { worker_connections {connections}; }\n\
    http { access_log off; keepalive_requests 1000000000; keepalive_timeout 3600s; client_body_temp_path {dir}/body;\n\
    proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fcgi; uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;\n\
    server { listen {address}; listen {admin};\n\
    location ~ ^/sub/(.+)$ { nchan_subscriber websocket; nchan_channel_id $1; nchan_store_messages off; }\n\
    location ~ ^/pub/(.+)$ { nchan_publisher http; nchan_channel_id $1; nchan_store_messages off; } } }\n";

const MOSQUITTO: &str =
    "listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nlog_type none\nset_tcp_nodelay true\n";

/// All of them.
pub(crate) const SERVERS: &[AddressedServer] = &[
    AddressedServer {
        name: "stillgate-devices",
        dialect: Dialect::Raw,
        kind: TargetKind::Stillgate,
        command: "",
        configuration: STILLGATE,
    },
    AddressedServer {
        name: "stillgate-devices-ack",
        dialect: Dialect::Acknowledged,
        kind: TargetKind::Stillgate,
        command: "",
        configuration: STILLGATE,
    },
    AddressedServer {
        name: "nchan",
        dialect: Dialect::Nchan,
        kind: TargetKind::Nginx,
        command: "",
        configuration: NCHAN,
    },
    AddressedServer {
        name: "pushpin",
        dialect: Dialect::Pushpin,
        kind: TargetKind::Command,
        command: "pushpin --config={config}",
        configuration: CONFIGURATION,
    },
    AddressedServer {
        name: "mosquitto",
        dialect: Dialect::Mqtt,
        kind: TargetKind::Command,
        command: "mosquitto -c {config}",
        configuration: MOSQUITTO,
    },
];

impl AddressedServer {
    /// How it is started, with room for so many clients.
    pub(crate) fn spec(&self, folder: &Path, clients: usize) -> Result<Spec> {
        let protocol = if self.dialect == Dialect::Acknowledged { "json" } else { "raw" };
        let mut configuration = self
            .configuration
            .replace("{connections}", &(clients + OTHER_CONNECTIONS).to_string())
            .replace("{protocol}", protocol);
        if self.dialect == Dialect::Pushpin {
            let (origin, routes) = (start_origin()?, folder.join("pushpin-routes"));
            std::fs::write(&routes, format!("* {origin},over_http\n"))
                .map_err(|error| Error::new(format!("{}: {error}", routes.display())))?;
            configuration = configuration.replace("{routes}", &routes.to_string_lossy());
        }
        let mut spec = Spec::built_in(self.kind, folder.to_owned());
        spec.name = self.name.to_owned();
        spec.configuration = Some(configuration);
        if self.kind == TargetKind::Command {
            // It says at which address it listens in its configuration.
            spec.command = Some(self.command.to_owned());
        }
        Ok(spec)
    }
}

/// The addresses of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerAddress {
    pub(crate) dialect: Dialect,
    pub(crate) clients: SocketAddr,
    pub(crate) back_ends: SocketAddr,
}

/// Connected clients.
#[derive(Debug)]
pub(crate) struct NamedClients {
    address: ServerAddress,
    clients: Vec<NamedClient>,
    /// The first client of the next run.
    turn: usize,
    /// Number of clients so far: names are never used again.
    opened: usize,
}

#[derive(Debug)]
struct NamedClient {
    name: String,
    stream: TcpStream,
    received: Vec<u8>,
}

impl NamedClients {
    pub(crate) fn new(address: ServerAddress) -> NamedClients {
        NamedClients { address, clients: Vec::new(), turn: 0, opened: 0 }
    }
}

impl Clients for NamedClients {
    fn open(&mut self, count: usize) -> Result {
        let (address, first) = (self.address, self.opened);
        self.opened += count;
        let open = |opener: usize| -> Result<Vec<NamedClient>> {
            let one = |number| {
                let name = format!("d{:06}", first + number);
                NamedClient::open(&address, &name).map_err(|error| Error::new(format!("client {name}: {error}")))
            };
            (opener..count).step_by(OPENERS).map(one).collect()
        };
        let opened = in_parallel(0..OPENERS, open)?;
        self.clients.extend(opened.into_iter().flatten());
        Ok(())
    }

    fn close(&mut self) {
        self.clients.clear();
    }

    fn run(&mut self, pace: MessagePace, duration: Duration) -> Result<MessageTotals> {
        let (back_ends, step) = match pace {
            MessagePace::Clock(per_second) => (1, Duration::from_secs_f64(1.0 / per_second)),
            MessagePace::Answers(at_once) => (at_once, Duration::ZERO),
        };
        let (address, turn, sent) = (self.address, self.turn, AtomicU64::new(0));
        let part = self.clients.len().div_ceil(back_ends).max(1);
        let parts = self.clients.chunks_mut(part);
        let (begin, last) = (Instant::now(), AtomicU64::new(0));
        in_parallel(parts, |part| -> Result {
            let mut back_end = BackEnd::open(&address)?;
            let mut number = 0;
            loop {
                thread::sleep((step * number).saturating_sub(begin.elapsed()));
                if begin.elapsed() >= duration {
                    break;
                }
                let at = (turn + number as usize) % part.len();
                back_end.message(&address, &mut part[at])?;
                sent.fetch_add(1, Ordering::Relaxed);
                number += 1;
            }
            last.fetch_max(u64::from(number), Ordering::Relaxed);
            Ok(())
        })?;
        self.turn += last.into_inner() as usize;
        let sent = sent.into_inner();
        Ok(MessageTotals { sent, answered: sent, ..MessageTotals::new() })
    }
}

/// Runs work on all parts in parallel, with one thread each.
fn in_parallel<P: Send, T: Send>(
    parts: impl Iterator<Item = P>,
    work: impl Fn(P) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || work(part))).collect();
        let ends = threads.into_iter().map(|thread| thread.join());
        ends.map(|end| end.unwrap_or_else(|_| Err("a client's thread panicked".into()))).collect()
    })
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

impl NamedClient {
    /// Connects a client that the server knows by its name.
    fn open(address: &ServerAddress, name: &str) -> io::Result<NamedClient> {
        let stream = connect(address.clients)?;
        let mut client = NamedClient { name: name.to_owned(), stream, received: Vec::new() };
        if address.dialect == Dialect::Mqtt {
            client.stream.write_all(&mqtt_connect(name))?;
            expect(&mut client.stream, &CONNACK)?;
            client.stream.write_all(&mqtt_subscribe(name))?;
            expect(&mut client.stream, &SUBACK)?;
            return Ok(client);
        }
        let protocol = match address.dialect {
            Dialect::Acknowledged => "Sec-WebSocket-Protocol: stillgate.v1\r\n",
            _ => "",
        };
        let request = websocket::request("localhost", &format!("/sub/{name}?device={name}"), protocol);
        client.stream.write_all(request.as_bytes())?;
        let end = loop {
            if let Some(at) = client.received.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            client.read()?;
        };
        let head = String::from_utf8_lossy(&client.received[..end]).into_owned();
        if !websocket::is_accepted(&head) {
            return Err(io::Error::other(format!("the handshake was answered {head:?}")));
        }
        client.received.drain(..end);
        if address.dialect == Dialect::Acknowledged {
            // The greeting.
            client.frame()?;
        }
        Ok(client)
    }

    /// Receives the next message, which must be the one that was sent, and acknowledges it if required.
    fn receive(&mut self, dialect: Dialect) -> io::Result<()> {
        let message = if dialect == Dialect::Mqtt { mqtt_message(&mut self.stream)? } else { self.frame()? };
        let text = String::from_utf8_lossy(&message);
        if !text.contains(BODY) {
            return Err(io::Error::other(format!("{} received what was not sent: {text}", self.name)));
        }
        if dialect == Dialect::Acknowledged {
            let (_, seq) = text.split_once("\"seq\":").ok_or_else(|| io::Error::other("a message without a number"))?;
            let seq: String = seq.chars().take_while(char::is_ascii_digit).collect();
            self.write(Opcode::Text, format!("{{\"type\":\"ack\",\"seq\":{seq}}}").as_bytes())?;
        }
        Ok(())
    }

    /// Receives the next data frame; answers pings.
    fn frame(&mut self) -> io::Result<Vec<u8>> {
        loop {
            let Some(frame) = websocket::read(&self.received, Sender::Server).map_err(io::Error::other)? else {
                self.read()?;
                continue;
            };
            let (opcode, payload, length) = (frame.opcode, frame.payload().to_vec(), frame.length);
            self.received.drain(..length);
            if self.received.is_empty() {
                // An idle client holds no buffer.
                self.received = Vec::new();
            }
            match opcode {
                Opcode::Text | Opcode::Binary => return Ok(payload),
                Opcode::Ping => self.write(Opcode::Pong, &payload)?,
                other => return Err(io::Error::other(format!("{} received a frame {other:?}", self.name))),
            }
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let mut part = [0; 4096];
        match self.stream.read(&mut part)? {
            0 => Err(io::Error::other(format!("{} was disconnected", self.name))),
            length => {
                self.received.extend_from_slice(&part[..length]);
                Ok(())
            }
        }
    }

    fn write(&mut self, opcode: Opcode, payload: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::new();
        websocket::write(&mut bytes, opcode, payload, [0; 4]);
        self.stream.write_all(&bytes)
    }
}

/// A connection that publishes.
enum BackEnd {
    Http(Client),
    Mqtt(TcpStream),
}

impl BackEnd {
    fn open(address: &ServerAddress) -> Result<BackEnd> {
        if address.dialect != Dialect::Mqtt {
            return Ok(BackEnd::Http(Client::new(address.back_ends)));
        }
        let open = || {
            let mut stream = connect(address.back_ends)?;
            let name = format!("back-end-{}", stream.local_addr()?.port());
            stream.write_all(&mqtt_connect(&name))?;
            expect(&mut stream, &CONNACK).map(|()| stream)
        };
        open().map(BackEnd::Mqtt).map_err(|error: io::Error| Error::new(format!("a back-end: {error}")))
    }

    /// Sends a message to a client, and waits until it has it and the server has answered.
    fn message(&mut self, address: &ServerAddress, client: &mut NamedClient) -> Result {
        let received = |end: io::Result<()>| end.map_err(|error| Error::new(format!("a message: {error}")));
        let (name, dialect) = (&client.name, address.dialect);
        let http = match self {
            BackEnd::Mqtt(stream) => {
                received(stream.write_all(&mqtt_publish(name, BODY)))?;
                received(expect(stream, &PUBACK))?;
                return received(client.receive(dialect));
            }
            BackEnd::Http(http) => http,
        };
        let (path, body) = match dialect {
            Dialect::Raw => (format!("/v1/devices/{name}/messages?ack=written"), BODY.to_owned()),
            Dialect::Acknowledged => (format!("/v1/devices/{name}/messages?ack=device"), BODY.to_owned()),
            Dialect::Nchan => (format!("/pub/{name}"), BODY.to_owned()),
            Dialect::Pushpin | Dialect::Mqtt => {
                let content = BODY.replace('"', "\\\"");
                let formats = format!("{{\"ws-message\":{{\"content\":\"{content}\"}}}}");
                let item = format!("{{\"channel\":\"{name}\",\"formats\":{formats}}}");
                ("/publish/".to_owned(), format!("{{\"items\":[{item}]}}"))
            }
        };
        http.begin("POST", &path, "Content-Type: application/json\r\n", &body)?;
        // The answer waits for the client's acknowledgement.
        if dialect == Dialect::Acknowledged {
            received(client.receive(dialect))?;
        }
        let reply = http.end()?;
        if !(200..300).contains(&reply.status) {
            let text = String::from_utf8_lossy(&reply.body);
            return Err(Error::new(format!("a message was answered {} {text}", reply.status)));
        }
        match dialect == Dialect::Acknowledged {
            true => Ok(()),
            false => received(client.receive(dialect)),
        }
    }
}

fn expect<const N: usize>(stream: &mut TcpStream, expected: &[u8; N]) -> io::Result<()> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    match bytes == *expected {
        true => Ok(()),
        false => Err(io::Error::other(format!("{bytes:?} where {expected:?} was expected"))),
    }
}

// Pushpin's configuration, and its origin: instructs it, by the GRIP protocol over HTTP, to hold each WebSocket and to name its
// channel after its path.

/// Its programs communicate over sockets in its folder. They ask an origin over HTTP how to handle each WebSocket.
pub(super) const CONFIGURATION: &str = "[global]\ninclude={libdir}/internal.conf\nrundir={dir}\nipc_prefix=pp-\nport_offset=0\n\
    [runner]\nservices=condure,zurl,pushpin-proxy,pushpin-handler\nhttp_port={address}\nlogdir={dir}\nlog_level=0\n\
    client_buffer_size=8192\nclient_maxconn=50000\n\
    [proxy]\nroutesfile={routes}\nupdates_check=off\nsig_key=bench\n\
    zurl_out_specs=ipc://{dir}/pp-zurl-in\nzurl_out_stream_specs=ipc://{dir}/pp-zurl-in-stream\n\
    zurl_in_specs=ipc://{dir}/pp-zurl-out\n\
    [handler]\npush_in_spec=ipc://{dir}/pp-push\npush_in_sub_specs=ipc://{dir}/pp-sub\n\
    command_spec=ipc://{dir}/pp-command\nstats_spec=ipc://{dir}/pp-stats\n\
    push_in_http_addr=127.0.0.1\npush_in_http_port={admin_port}\npush_in_http_max_headers_size=10000\n\
    push_in_http_max_body_size=1000000\nmessage_rate=1000000\nmessage_hwm=1000000\nid_cache_ttl=60\n\
    connection_subscription_max=20\n";

/// Serves until this program ends; its CPU time does not count as the server's.
fn start_origin() -> Result<SocketAddr> {
    let bind = || TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr().map(|at| (listener, at)));
    let (listener, address) = bind().map_err(|error| Error::new(format!("the origin of pushpin: {error}")))?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // If one fails, Pushpin requests it again.
            thread::spawn(move || serve(&stream));
        }
    });
    Ok(address)
}

fn serve(stream: &TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    loop {
        let (mut line, mut length) = (String::new(), 0);
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let channel = channel(&line)?.to_owned();
        loop {
            line.clear();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
            if line == "\r\n" {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        writer.write_all(answer(&body, &channel).as_bytes()).ok()?;
    }
}

/// The last part of a request's path.
fn channel(request_line: &str) -> Option<&str> {
    request_line.split(' ').nth(1)?.split('?').next()?.rsplit('/').next()
}

/// The response to the events of a WebSocket: held and subscribed when it opens; later events need nothing.
fn answer(events: &[u8], channel: &str) -> String {
    let (extension, body) = if events.starts_with(b"OPEN") {
        let control = format!("c:{{\"type\":\"subscribe\",\"channel\":\"{channel}\"}}");
        ("Sec-WebSocket-Extensions: grip\r\n", format!("OPEN\r\nTEXT {:X}\r\n{control}\r\n", control.len()))
    } else {
        ("", String::new())
    };
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/websocket-events\r\n{extension}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The answers to [`connect`], [`subscribe`] and [`publish`].
const CONNACK: [u8; 4] = [0x20, 2, 0, 0];
const SUBACK: [u8; 5] = [0x90, 3, 0, 1, 0];
const PUBACK: [u8; 4] = [0x40, 2, 0, 1];

/// A clean session, no keep-alive.
fn mqtt_connect(name: &str) -> Vec<u8> {
    packet(0x10, &[b"\0\x04MQTT\x04\x02\0\0", string(name).as_slice()])
}

/// Subscribes to the topic of a client at QoS 0; packet 1.
fn mqtt_subscribe(name: &str) -> Vec<u8> {
    packet(0x82, &[&[0, 1], string(&topic(name)).as_slice(), &[0]])
}

/// Publishes at QoS 1, so that the broker answers; always packet 1, since only one is under way at a time.
fn mqtt_publish(name: &str, body: &str) -> Vec<u8> {
    packet(0x32, &[string(&topic(name)).as_slice(), &[0, 1], body.as_bytes()])
}

/// The payload of a PUBLISH with QoS 0.
fn mqtt_message(reader: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = [0; 2];
    reader.read_exact(&mut head)?;
    if head[0] != 0x30 || head[1] > 127 {
        return Err(io::Error::other(format!("not a short message of QoS 0: {head:?}")));
    }
    let mut rest = vec![0; usize::from(head[1])];
    reader.read_exact(&mut rest)?;
    let topic = rest.first_chunk::<2>().map_or(0, |length| usize::from(u16::from_be_bytes(*length)));
    rest.get(2 + topic..).map(<[u8]>::to_vec).ok_or_else(|| io::Error::other("a message without a topic"))
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
    fn a_channel_is_named_by_the_path_alone() {
        assert_eq!(channel("POST /sub/d7?device=d7 HTTP/1.1\r\n"), Some("d7"));
    }

    #[test]
    fn an_opened_web_socket_is_subscribed() {
        let text = answer(b"OPEN\r\n", "d7");
        assert!(
            text.ends_with("\r\n\r\nOPEN\r\nTEXT 25\r\nc:{\"type\":\"subscribe\",\"channel\":\"d7\"}\r\n"),
            "{text}"
        );
        assert!(text.contains("Content-Length: 54\r\n"), "{text}");
        assert!(answer(b"CLOSE 2\r\n", "d7").ends_with("Content-Length: 0\r\n\r\n"));
    }

    #[test]
    fn packets_are_as_the_standard_has_them() {
        assert_eq!(mqtt_connect("d1"), b"\x10\x0e\0\x04MQTT\x04\x02\0\0\0\x02d1");
        assert_eq!(mqtt_subscribe("d1"), b"\x82\x09\0\x01\0\x04d/d1\0");
        assert_eq!(mqtt_publish("d1", "hi"), b"\x32\x0a\0\x04d/d1\0\x01hi");
        assert_eq!(mqtt_message(&mut b"\x30\x08\0\x04d/d1hi".as_slice()).unwrap(), b"hi");
        assert!(mqtt_message(&mut b"\x90\x03".as_slice()).is_err());
    }
}
