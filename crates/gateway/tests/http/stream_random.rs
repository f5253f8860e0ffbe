//! Many connections of streams at once, of random lengths and ends, and every byte of them.

use crate::shared::authority;
use crate::shared::authority::{Authority, TlsClient};
use crate::shared::streams::{Streams, nodes_of};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use stillgate_testkit::{BufferedSocket, Upstream, eventually, payload};

const THREADS: u64 = 8;
const ROUNDS: u64 = 25;
const BYTES_MAX: u64 = 400_000;

/// Sends back what comes, until its end.
fn echo() -> Upstream {
    Upstream::serve(|connection: &mut BufferedSocket| {
        let mut stream = connection.stream();
        let mut buffer = [0; 32 * 1024];
        while let Ok(len @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..len]).is_err() {
                return;
            }
        }
        connection.half_close();
    })
}

/// A number from 0 to `below`, the same for the same seed.
fn random(seed: u64, below: u64) -> u64 {
    seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_mul(0xBF58_476D_1CE4_E5B9) % below
}

fn one(streams: &Streams, authority: Option<&Authority>, seed: u64) {
    let len = match seed % 5 {
        0 => 0,
        1 => random(seed, 10),
        _ => random(seed, BYTES_MAX),
    };
    let sent = payload(seed, len as usize);
    let socket = authority::patient(TcpStream::connect(streams.addr()).expect("connect"));
    if authority.is_none() && seed % 11 == 7 {
        // It leaves without a word, in the middle of the session.
        let mut socket = socket;
        socket.write_all(&sent[..sent.len() / 2]).expect("sent");
        return;
    }
    let mut got = Vec::new();
    match authority {
        None => std::thread::scope(|scope| {
            let mut writing = socket.try_clone().expect("a handle");
            let sent = &sent;
            scope.spawn(move || {
                for part in sent.chunks(1 + random(seed, 50_000) as usize) {
                    writing.write_all(part).expect("sent");
                }
                writing.shutdown(Shutdown::Write).expect("half closed");
            });
            (&socket).read_to_end(&mut got).expect("an orderly end");
        }),
        Some(authority) => {
            let mut tls = TlsClient::new(authority.client("shop.test", &[]), socket);
            while tls.conn.is_handshaking() {
                tls.conn.complete_io(&mut tls.sock).expect("a handshake");
            }
            // One direction after the other: a stream of rustls has no two halves.
            for part in sent.chunks(20_000) {
                tls.write_all(part).expect("sent");
                let mut back = vec![0; part.len()];
                tls.read_exact(&mut back).expect("sent back");
                got.extend(back);
            }
            tls.conn.send_close_notify();
            tls.flush().expect("sent");
            tls.read_to_end(&mut got).expect("an orderly end");
        }
    }
    assert!(got == sent, "seed {seed}: {} bytes of {}", got.len(), sent.len());
}

fn many(streams: &Streams, authority: Option<Arc<Authority>>) {
    let mut gateway = streams.start();
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (done, authority) = (&done, authority.clone());
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    one(streams, authority.as_deref(), thread * 1000 + round);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), (THREADS * ROUNDS) as usize);
    eventually("all to be over", || gateway.status()["streams"]["open"] == 0);
    assert_eq!(gateway.status()["streams"]["total"], THREADS * ROUNDS);
    gateway.assert_healthy();
}

#[test]
fn every_byte_arrives() {
    let upstream = echo();
    many(&Streams::to(&[upstream.addr()]).gateway("workers: 2"), None);
}

#[test]
fn every_byte_arrives_through_tls() {
    let authority = Arc::new(Authority::new());
    authority.issue("shop", &["shop.test"]);
    let upstream = echo();
    let ca = authority.dir().display().to_string();
    let streams = Streams::new(format!(
        "ssls: [{{id: shop, cert: \"{ca}/shop.pem\", key: \"{ca}/shop.key\", snis: [shop.test]}}]\n\
         stream_routes: [{{sni: shop.test, upstream: {{{}}}}}]\n",
        nodes_of(&[upstream.addr()])
    ));
    many(&streams.listener("tls: true").gateway("workers: 2"), Some(authority));
}
