//! A relay that ends connections after a number of bytes that the test chooses, whatever they carry: so either side can
//! disappear at any point of an exchange, within a TLS handshake as well as within a frame.

use crate::port::ReservedPort;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutEnd {
    /// Orderly, as far as TCP goes.
    Fin,
    /// As if the peer's machine had forgotten it.
    Reset,
    /// Not at all: nothing is passed on any more, and the relay goes on to read and to acknowledge.
    Silence,
}

/// The side whose bytes are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The side that has connected to the relay.
    Client,
    /// The side that the relay has connected to.
    Node,
}

/// Where to end a connection. Both sides see the same end.
#[derive(Debug, Clone, Copy)]
pub struct CutPoint {
    /// The bytes of this side are counted.
    pub side: Side,
    /// This many are passed on.
    pub after: u64,
    /// Then this happens.
    pub end: CutEnd,
}

/// A TCP relay in front of one address.
#[derive(Debug)]
pub struct Cutter {
    port: ReservedPort,
    shared: Arc<CutterState>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct CutterState {
    /// Where later connections are relayed to.
    node: Mutex<Option<SocketAddr>>,
    is_over: AtomicBool,
    state: Mutex<RelayState>,
}

#[derive(Debug, Default)]
struct RelayState {
    cut: Option<CutPoint>,
    /// Weak, because a connection is reset by its last owner.
    pairs: Vec<(Weak<RelayedPair>, Arc<RelayProgress>)>,
}

/// Both ends of one relayed connection.
#[derive(Debug)]
struct RelayedPair {
    client: TcpStream,
    node: TcpStream,
    cut: Option<CutPoint>,
    tally: Arc<RelayProgress>,
}

/// The progress of a connection.
#[derive(Debug, Default)]
struct RelayProgress {
    passed: [AtomicU64; 2],
    is_cut: AtomicBool,
}

impl Cutter {
    /// Relays to `node`, unchanged.
    ///
    /// # Panics
    /// In its thread, if `node` cannot be reached.
    pub fn to(node: SocketAddr) -> Self {
        let port = crate::port::ReservedPort::new();
        let listener = port.listen();
        let shared = Arc::new(CutterState::default());
        *shared.node.lock().unwrap() = Some(node);
        let ours = Arc::clone(&shared);
        let acceptor = std::thread::spawn(move || {
            for client in listener.incoming() {
                if ours.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let node = ours.node.lock().unwrap().expect("it was set above");
                let (Ok(client), Ok(node)) = (client, TcpStream::connect(node)) else { continue };
                ours.begin(client, node);
            }
        });
        Self { port, shared, acceptor: Some(acceptor) }
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Ends the current connections with a FIN, and later ones according to `cut`.
    pub fn arm(&self, cut: Option<CutPoint>) {
        self.end_with(CutEnd::Fin);
        self.shared.state.lock().unwrap().cut = cut;
    }

    /// Ends the current connections.
    pub fn end_with(&self, end: CutEnd) {
        for (pair, _) in self.shared.state.lock().unwrap().pairs.drain(..) {
            if let Some(pair) = pair.upgrade() {
                pair.finish(end);
            }
        }
    }

    /// Ends the current connections, and relays later ones to another address.
    pub fn redirect(&self, node: SocketAddr) {
        *self.shared.node.lock().unwrap() = Some(node);
        self.end_with(CutEnd::Fin);
    }

    /// Passes nothing on any more over the connection that was made last, which stays open.
    pub fn silence_last(&self) {
        let last = self.shared.state.lock().unwrap().pairs.pop();
        if let Some(pair) = last.and_then(|(pair, _)| pair.upgrade()) {
            pair.finish(CutEnd::Silence);
        }
    }

    /// Whether a connection made since [`Cutter::arm`] has been cut.
    pub fn has_cut(&self) -> bool {
        self.shared.state.lock().unwrap().pairs.iter().any(|(_, tally)| tally.is_cut.load(Ordering::SeqCst))
    }

    /// Bytes from a side that were passed on since [`Cutter::arm`].
    pub fn passed(&self, side: Side) -> u64 {
        let state = self.shared.state.lock().unwrap();
        state.pairs.iter().map(|(_, tally)| tally.passed[side as usize].load(Ordering::SeqCst)).sum()
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.end_with(CutEnd::Reset);
        // Wakes the acceptor, which may have ended already.
        let _ = TcpStream::connect(self.addr());
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl CutterState {
    fn begin(&self, client: TcpStream, node: TcpStream) {
        for stream in [&client, &node] {
            stream.set_nodelay(true).expect("TCP_NODELAY on a live socket");
        }
        let mut state = self.state.lock().unwrap();
        let tally = Arc::new(RelayProgress::default());
        let pair = Arc::new(RelayedPair { client, node, cut: state.cut, tally: Arc::clone(&tally) });
        state.pairs.push((Arc::downgrade(&pair), tally));
        drop(state);
        for side in [Side::Client, Side::Node] {
            let pair = Arc::clone(&pair);
            std::thread::spawn(move || pair.pump(side));
        }
    }
}

impl RelayedPair {
    /// Passes on the bytes from `side`; once the connection is cut, discards them until that side ends, too.
    fn pump(&self, side: Side) {
        let (mut from, mut to) = match side {
            Side::Client => (&self.client, &self.node),
            Side::Node => (&self.node, &self.client),
        };
        let limit = self.cut.filter(|cut| cut.side == side);
        let mut left = limit.map_or(u64::MAX, |cut| cut.after);
        let mut buffer = [0; 16 * 1024];
        loop {
            if let (0, Some(cut)) = (left, limit)
                && !self.tally.is_cut.load(Ordering::SeqCst)
            {
                self.finish(cut.end);
            }
            let n = match from.read(&mut buffer) {
                Ok(n @ 1..) => n,
                // The other side sees the same end; if the connection is cut it has seen it already.
                _ if self.tally.is_cut.load(Ordering::SeqCst) => return,
                Ok(_) => {
                    let _ = to.shutdown(Shutdown::Write);
                    return;
                }
                Err(_) => return self.finish(CutEnd::Reset),
            };
            let take = n.min(usize::try_from(left).unwrap_or(n));
            if !self.tally.is_cut.load(Ordering::SeqCst) {
                // Counted before, so that a receiver of the bytes finds them counted.
                self.tally.passed[side as usize].fetch_add(take as u64, Ordering::SeqCst);
                // A side that has gone is noticed when it is read from.
                let _ = to.write_all(&buffer[..take]);
            }
            left -= take as u64;
        }
    }

    /// Ends both directions of both sides.
    fn finish(&self, end: CutEnd) {
        self.tally.is_cut.store(true, Ordering::SeqCst);
        for stream in [&self.client, &self.node] {
            match end {
                CutEnd::Fin => {
                    // A connection that was reset needs no FIN.
                    let _ = stream.shutdown(Shutdown::Write);
                }
                CutEnd::Silence => {}
                CutEnd::Reset => {
                    let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
                    // Wakes its reader, in this process only; its last owner closes it, which resets it.
                    let _ = stream.shutdown(Shutdown::Read);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Client, MessageError, Upstream, eventually};

    #[test]
    fn cuts_where_it_was_configured() {
        let upstream = Upstream::echo();
        let cutter = Cutter::to(upstream.addr());
        assert_eq!(Client::connect(cutter.addr()).get("/?size=1000").body.len(), 1000);
        let (asked, answered) = (cutter.passed(Side::Client), cutter.passed(Side::Node));
        for end in [CutEnd::Fin, CutEnd::Reset] {
            for (side, after) in
                [(Side::Client, 0), (Side::Client, asked - 1), (Side::Node, 0), (Side::Node, answered - 1)]
            {
                cutter.arm(Some(CutPoint { side, after, end }));
                let broken = Client::connect(cutter.addr()).try_request("GET", "/?size=1000", b"").unwrap_err();
                match end {
                    CutEnd::Fin => {
                        assert!(matches!(broken, MessageError::Closed | MessageError::Truncated(_)), "{broken:?}")
                    }
                    CutEnd::Reset | CutEnd::Silence => assert!(matches!(broken, MessageError::Reset(_)), "{broken:?}"),
                }
                eventually("the cut", || cutter.has_cut());
                assert!(cutter.passed(side) <= after);
            }
            cutter.arm(Some(CutPoint { side: Side::Node, after: answered + 1, end }));
            assert_eq!(Client::connect(cutter.addr()).get("/?size=1000").body.len(), 1000);
            assert!(!cutter.has_cut());
        }
    }
}
