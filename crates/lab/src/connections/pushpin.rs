//! Pushpin's configuration, and its origin: instructs it, by the GRIP protocol over HTTP, to hold each WebSocket and to name its
//! channel after its path.

use crate::error::{Error, Result};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

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
pub(super) fn start_origin() -> Result<SocketAddr> {
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
