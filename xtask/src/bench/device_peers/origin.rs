//! Pushpin's origin: instructs it, by the GRIP protocol over HTTP, to hold each WebSocket and to name its channel after its path.

use crate::Result;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Serves until the program ends; its CPU time does not count as the server's.
pub(super) fn start() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
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
}
