//! The node of the body bench, a separate process: sends a body of any length with either framing.
//!
//! One thread per connection, each with one block that it writes again and again; it is never the bottleneck.

use crate::Result;
use crate::args::Args;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// The word on the command line.
pub(in crate::bench) const ROLE: &str = "body-node";

/// The text at the beginning of a body and after every [`MARK_EVERY`] bytes.
pub(super) const MARK: &str = "secret=1234";
const MARK_EVERY: usize = 4096;
/// Bytes per write.
const BLOCK_BYTES: usize = 64 * 1024;

/// The framing of a body.
#[derive(Clone, Copy)]
pub(super) enum Framing {
    Length,
    Chunked,
}

/// The path of a body.
pub(super) fn path(framing: Framing, bytes: u64) -> String {
    match framing {
        Framing::Length => format!("/length/{bytes}"),
        Framing::Chunked => format!("/chunked/{bytes}"),
    }
}

/// Serves until it is killed. The argument: the address to listen on.
pub(in crate::bench) fn run(mut args: Args) -> Result {
    let address: SocketAddr = args.word().ok_or("no address")?.parse()?;
    args.finish()?;
    let listener = TcpListener::bind(address)?;
    let block = block();
    thread::scope(|scope| {
        loop {
            let (stream, _) = listener.accept()?;
            // A gateway may close the connection at any time; the next one has another thread.
            scope.spawn(|| serve(stream, &block).is_ok());
        }
    })
}

/// Lines of text, so that filters that search for lines find some.
fn block() -> Vec<u8> {
    let line = |length: usize| "x".repeat(length - 1) + "\n";
    let part = MARK.to_owned() + &line(64 - MARK.len()) + &line(64).repeat(MARK_EVERY / 64 - 1);
    part.repeat(BLOCK_BYTES / MARK_EVERY).into_bytes()
}

/// Answers requests one by one.
fn serve(stream: TcpStream, block: &[u8]) -> Result {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    loop {
        let mut request = String::new();
        if stream.read_line(&mut request)? == 0 {
            return Ok(());
        }
        let mut line = String::new();
        while stream.read_line(&mut line)? > 2 {
            line.clear();
        }
        let path = request.split(' ').nth(1).unwrap_or_default();
        let (framing, bytes) = wanted(path).ok_or_else(|| format!("no body at {path}"))?;
        send(stream.get_mut(), framing, bytes, block)?;
    }
}

fn wanted(path: &str) -> Option<(Framing, u64)> {
    let (framing, bytes) = path.strip_prefix('/')?.split_once('/')?;
    let framing = match framing {
        "length" => Framing::Length,
        "chunked" => Framing::Chunked,
        _ => return None,
    };
    Some((framing, bytes.parse().ok()?))
}

fn send(stream: &mut TcpStream, framing: Framing, bytes: u64, block: &[u8]) -> Result {
    let head = match framing {
        Framing::Length => format!("Content-Length: {bytes}"),
        Framing::Chunked => "Transfer-Encoding: chunked".to_owned(),
    };
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n{head}\r\n\r\n")?;
    let mut left = bytes;
    while left > 0 {
        let part = &block[..usize::try_from(left).map_or(block.len(), |left| left.min(block.len()))];
        left -= part.len() as u64;
        match framing {
            Framing::Length => stream.write_all(part)?,
            Framing::Chunked => {
                write!(stream, "{:x}\r\n", part.len())?;
                stream.write_all(part)?;
                stream.write_all(b"\r\n")?;
            }
        }
    }
    if matches!(framing, Framing::Chunked) {
        stream.write_all(b"0\r\n\r\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_a_mark_every_so_often() {
        let block = String::from_utf8(block()).unwrap();
        assert_eq!(block.len(), BLOCK_BYTES);
        assert_eq!(block.matches(MARK).count(), BLOCK_BYTES / MARK_EVERY);
        assert!(block.starts_with(MARK));
    }

    #[test]
    fn paths_are_read_as_they_are_written() {
        assert!(matches!(wanted(&path(Framing::Length, 7)), Some((Framing::Length, 7))));
        assert!(matches!(wanted(&path(Framing::Chunked, 0)), Some((Framing::Chunked, 0))));
        assert!(wanted("/").is_none());
    }
}
