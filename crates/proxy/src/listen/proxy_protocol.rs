//! Reads the PROXY protocol header with which a balancer in front of us begins a connection, and no byte of what follows it.
//!
//! The header is parsed where the kernel keeps it (`MSG_PEEK`) and then read to where it ends. If it is incomplete, all that came
//! is read: those bytes are the header's in any case, and left where they are they would show the socket as readable for ever.

use crate::basics::clock::Timer;
use crate::sockets::listener::{ConnectionEvent, Listener};
use crate::worker::Worker;
use crate::worker::draining::DRAINING_FIRST_REQUEST_MS;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use stillgate_wire::ProxyProtocolError;
use stillgate_wire::proxy_protocol::{ProxyHeader, V2_BYTES_MAX, parse};
use tokio::io::ReadBuf;
use tokio::net::TcpStream;

/// Content of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ForwardedEndpoints {
    /// Source and destination of the forwarded connection; `None` if those of the socket apply.
    pub(crate) endpoints: Option<(SocketAddr, SocketAddr)>,
    /// Its client used TLS, which was terminated in front of us.
    pub(crate) is_tls: bool,
}

/// Why a connection is closed without having been served.
#[derive(Debug)]
enum NoHeader {
    /// The connection was closed or reset before its first byte, as by a health check, or we are ending: nothing is wrong.
    Unused,
    /// It began with something else.
    Malformed(ProxyProtocolError),
    /// The connection was closed before its header was complete.
    Cut,
    /// The header was not complete within `gateway.timeouts.head`.
    Late,
    /// The socket failed.
    Failed(io::Error),
}

impl fmt::Display for NoHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoHeader::Unused => f.write_str("it was closed before its first byte"),
            NoHeader::Malformed(ProxyProtocolError::Signature) => f.write_str(
                "it begins with something else; let the balancer send one (HAProxy: send-proxy-v2, nginx: proxy_protocol on), or \
                 set proxy_protocol: false for this listener",
            ),
            NoHeader::Malformed(error) => error.fmt(f),
            NoHeader::Cut => f.write_str("it was closed within the header"),
            NoHeader::Late => f.write_str("the header was not complete within gateway.timeouts.head"),
            NoHeader::Failed(error) => error.fmt(f),
        }
    }
}

/// Waits for the header, takes it from the connection, and returns the address that the peer forwards for. `None` where the
/// connection is to be closed instead, without an answer: its protocol is not known.
pub(crate) async fn begin(
    worker: &Worker,
    stream: &TcpStream,
    timer: &Timer,
    peer: SocketAddr,
    listener: &Listener,
) -> Option<ForwardedEndpoints> {
    match read(worker, stream, timer).await {
        Ok(forwarded) => Some(forwarded),
        Err(NoHeader::Unused) => None,
        Err(error) => {
            worker.note_connection_event(ConnectionEvent::NoProxyHeader, listener);
            worker.troubles.note_connection(peer, format!("no good PROXY protocol header: {error}"));
            None
        }
    }
}

async fn read(worker: &Worker, stream: &TcpStream, timer: &Timer) -> Result<ForwardedEndpoints, NoHeader> {
    let begun_ms = worker.clock.now_ms();
    let head_ms = worker.snapshot().plan.settings.head_ms;
    let mut header = PartialHeader::default();
    poll_fn(|cx| {
        if let Poll::Ready(result) = header.poll(cx, stream) {
            return Poll::Ready(result);
        }
        let is_draining = worker.is_ending();
        let patience_ms = if is_draining { head_ms.min(DRAINING_FIRST_REQUEST_MS) } else { head_ms };
        let deadline_ms = begun_ms + patience_ms;
        if worker.clock.now_ms() >= deadline_ms {
            return Poll::Ready(Err(if is_draining { NoHeader::Unused } else { NoHeader::Late }));
        }
        timer.set(&worker.clock, deadline_ms, cx);
        Poll::Pending
    })
    .await
}

/// The part of an incomplete header that has been read; most arrive in one piece, and then it stays empty.
#[derive(Default)]
struct PartialHeader {
    taken: Vec<u8>,
}

impl PartialHeader {
    fn poll(&mut self, cx: &mut Context<'_>, stream: &TcpStream) -> Poll<Result<ForwardedEndpoints, NoHeader>> {
        loop {
            let mut space = [MaybeUninit::uninit(); V2_BYTES_MAX];
            let mut space = ReadBuf::uninit(&mut space);
            space.put_slice(&self.taken);
            match stream.poll_peek(cx, &mut space) {
                Poll::Ready(Ok(0) | Err(_)) if self.taken.is_empty() => return Poll::Ready(Err(NoHeader::Unused)),
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(NoHeader::Cut)),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(NoHeader::Failed(error))),
                Poll::Pending => return Poll::Pending,
            }
            let (end, complete) = match parse(space.filled()) {
                Err(error) => return Poll::Ready(Err(NoHeader::Malformed(error))),
                Ok(ProxyHeader::Partial) => (space.filled().len(), None),
                Ok(ProxyHeader::Complete { len, addresses, tls, .. }) => {
                    (len, Some(ForwardedEndpoints { endpoints: addresses, is_tls: tls.is_some() }))
                }
            };
            if let Err(error) = self.take(stream, end) {
                return Poll::Ready(Err(NoHeader::Failed(error)));
            }
            if let Some(forwarded) = complete {
                return Poll::Ready(Ok(forwarded));
            }
        }
    }

    /// Reads the header's bytes up to `end`, which were seen in the socket and so are available.
    fn take(&mut self, stream: &TcpStream, end: usize) -> io::Result<()> {
        let mut from = self.taken.len();
        self.taken.resize(end, 0);
        while from < end {
            match stream.try_read(&mut self.taken[from..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => from += n,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::Duration;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    async fn pair() -> (std::net::TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        peer.set_nodelay(true).unwrap();
        (peer, listener.accept().await.unwrap().0)
    }

    const LINE: &[u8] = b"PROXY TCP4 192.0.2.1 192.0.2.2 40000 443\r\n";

    fn forwarded() -> ForwardedEndpoints {
        let endpoints = ("192.0.2.1:40000".parse().unwrap(), "192.0.2.2:443".parse().unwrap());
        ForwardedEndpoints { endpoints: Some(endpoints), is_tls: false }
    }

    #[tokio::test]
    async fn what_follows_the_header_stays_in_the_socket() {
        let (mut peer, mut stream) = pair().await;
        peer.write_all(&[LINE, b"GET / HTTP/1.1\r\n"].concat()).unwrap();
        let mut header = PartialHeader::default();
        let found = poll_fn(|cx| header.poll(cx, &stream)).await.unwrap();
        assert_eq!(found, forwarded());
        let mut rest = [0; 16];
        stream.read_exact(&mut rest).await.unwrap();
        assert_eq!(&rest, b"GET / HTTP/1.1\r\n");
    }

    /// An incomplete header left in the socket would make it readable all the time, and so cause a busy loop.
    #[tokio::test]
    async fn a_header_in_pieces_is_taken_from_the_socket() {
        let (mut peer, stream) = pair().await;
        let mut header = PartialHeader::default();
        for (already, byte) in LINE.iter().enumerate() {
            peer.write_all(&[*byte]).unwrap();
            let taken = poll_fn(|cx| match header.poll(cx, &stream) {
                Poll::Pending if header.taken.len() == already => Poll::Pending,
                Poll::Pending => Poll::Ready(None),
                Poll::Ready(result) => Poll::Ready(Some(result)),
            });
            match tokio::time::timeout(Duration::from_secs(120), taken).await.expect("the byte is taken") {
                None => assert_eq!(header.taken, LINE[..=already]),
                Some(result) => assert_eq!((already + 1, result.unwrap()), (LINE.len(), forwarded())),
            }
        }
    }

    #[tokio::test]
    async fn an_end_is_distinguished() {
        for (sent, expected) in [(&b""[..], "before its first byte"), (&LINE[..9], "within the header")] {
            let (mut peer, stream) = pair().await;
            peer.write_all(sent).unwrap();
            drop(peer);
            let mut header = PartialHeader::default();
            let error = poll_fn(|cx| header.poll(cx, &stream)).await.unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
