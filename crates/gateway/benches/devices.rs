//! CPU that messages to devices take of the gateway, with an acknowledgement each: on one node, and over two with a Redis.
//!
//! ```text
//! cargo bench -p stillgate-gateway --bench devices -- [MESSAGES]
//! ```
//!
//! Devices and back-ends are threads of this process. What counts is the gateways' CPU time, not how fast they were asked.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_testkit::{Gateway, Redis, ReservedPort, Setup, eventually};

const DEVICES: usize = 64;
/// Back-ends that each wait for one message.
const BACK_ENDS: usize = 32;
const MESSAGES: usize = 30_000;
const WARM_UP: usize = 2_000;

const ROUTE: &str = "routes:\n  - {id: devices, uri: /connect, plugins: {device-gateway: {id: $arg_device}}}\n";

struct Node {
    gateway: Gateway,
    api: ReservedPort,
}

/// One of several nodes, if there is a directory.
fn start(name: &str, redis: Option<&Redis>) -> Node {
    let (api, peer) = (ReservedPort::new(), ReservedPort::new());
    let shared = redis.map_or_else(String::new, |redis| {
        format!(", peer: {{address: \"{}\"}}, registry: {{redis: {{url: \"{}\"}}}}", peer.addr(), redis.url(0))
    });
    let devices = format!("devices: {{node: {name}, address: \"{}\"{shared}}}", api.addr());
    let setup = Setup::resources(ROUTE).gateway(&format!("workers: 1\nmetrics: {{enabled: false}}\n{devices}"));
    Node { gateway: Gateway::start(env!("CARGO_BIN_EXE_stillgate"), &setup), api }
}

/// A device that acknowledges everything, until its connection ends.
fn device(gateway: SocketAddr, name: usize) {
    let mut stream = TcpStream::connect(gateway).unwrap();
    stream.set_nodelay(true).unwrap();
    let ask = format!(
        "GET /connect?device=d{name} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: stillgate.v1\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(ask.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let head = head(&mut reader);
    assert!(head.contains(" 101 "), "{head}");
    thread::spawn(move || {
        while let Some(message) = frame(&mut reader) {
            let Some((_, seq)) = message.split_once("\"seq\":") else { continue };
            let seq: String = seq.chars().take_while(char::is_ascii_digit).collect();
            let ack = format!("{{\"type\":\"ack\",\"seq\":{seq}}}");
            // A mask of zeros.
            let mut bytes = vec![0x81, 0x80 | u8::try_from(ack.len()).unwrap(), 0, 0, 0, 0];
            bytes.extend_from_slice(ack.as_bytes());
            if stream.write_all(&bytes).is_err() {
                return;
            }
        }
    });
}

fn head(reader: &mut impl BufRead) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
    }
    head
}

fn frame(reader: &mut impl Read) -> Option<String> {
    let mut start = [0; 2];
    reader.read_exact(&mut start).ok()?;
    let mut length = usize::from(start[1]);
    if length == 126 {
        reader.read_exact(&mut start).ok()?;
        length = usize::from(u16::from_be_bytes(start));
    }
    let mut payload = vec![0; length];
    reader.read_exact(&mut payload).ok()?;
    String::from_utf8(payload).ok()
}

/// Sends so many messages, and waits for the acknowledgement of each.
fn send(api: SocketAddr, messages: usize) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..BACK_ENDS {
            scope.spawn(|| {
                let mut stream = TcpStream::connect(api).unwrap();
                stream.set_nodelay(true).unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= messages {
                        return;
                    }
                    let ask = format!(
                        "POST /v1/devices/d{}/messages?ack=device HTTP/1.1\r\nHost: {api}\r\n\
                         Content-Type: application/json\r\nContent-Length: 11\r\n\r\n{{\"on\":true}}",
                        number % DEVICES
                    );
                    stream.write_all(ask.as_bytes()).unwrap();
                    let head = head(&mut reader).to_ascii_lowercase();
                    assert!(head.starts_with("http/1.1 200"), "{head}");
                    let length = head.split_once("content-length: ").unwrap().1.split_once("\r\n").unwrap().0;
                    reader.read_exact(&mut vec![0; length.parse().unwrap()]).unwrap();
                }
            });
        }
    });
}

/// Scripts that nodes have run, and reads of keys, by nodes and by scripts.
fn commands(redis: &Redis) -> u64 {
    let info = redis.cli(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
        line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
    };
    ["evalsha", "get"].into_iter().map(calls).sum()
}

fn measure(what: &str, messages: usize, asked: &Node, others: &[&Node], redis: Option<&Redis>) {
    eventually("the device to be found", || {
        let mut stream = TcpStream::connect(asked.api.addr()).unwrap();
        write!(stream, "GET /v1/devices/d0 HTTP/1.1\r\nHost: {}\r\n\r\n", asked.api.addr()).unwrap();
        head(&mut BufReader::new(stream)).contains(" 200 ")
    });
    send(asked.api.addr(), WARM_UP);
    let cpu = || asked.gateway.cpu() + others.iter().map(|node| node.gateway.cpu()).sum::<Duration>();
    let (before, commands_before, begun) = (cpu(), redis.map(commands), Instant::now());
    send(asked.api.addr(), messages);
    let (took, spent) = (begun.elapsed().as_secs_f64(), (cpu() - before).as_secs_f64());
    let each = spent / messages as f64;
    print!(
        "{what}: {:.1} us of CPU a message, {:.0} messages for a second of CPU, {:.0}/s",
        each * 1e6,
        1.0 / each,
        messages as f64 / took
    );
    if let (Some(redis), Some(before)) = (redis, commands_before) {
        let commands = commands(redis) - before;
        print!("; {commands} commands in {took:.1} s, {:.4} a message", commands as f64 / messages as f64);
    }
    println!();
}

fn main() {
    let messages = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(MESSAGES);
    let alone = start("a", None);
    (0..DEVICES).for_each(|name| device(alone.gateway.addr(), name));
    measure("one node", messages, &alone, &[], None);
    drop(alone);

    let redis = Redis::start();
    let nodes = [start("a", Some(&redis)), start("b", Some(&redis))];
    (0..DEVICES).for_each(|name| device(nodes[0].gateway.addr(), name));
    measure("asked at the device's node, of two", messages, &nodes[0], &[&nodes[1]], Some(&redis));
    measure("asked at the other node", messages, &nodes[1], &[&nodes[0]], Some(&redis));
}
