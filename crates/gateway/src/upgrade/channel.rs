//! Datagrams with descriptors between two processes, in order and without loss.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_send_buffer_size, set_socket_timeout, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recv, recvmsg, sendmsg, shutdown, socketpair,
};
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};
use stillgate_proxy::handover::PARCEL_BYTES_MAX;
use tracing::warn;

/// Bytes of a datagram.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 192 * 1024;
const _: () = assert!(PARCEL_BYTES_MAX <= DATAGRAM_BYTES_MAX);
/// Bytes that may wait to be received, as the system counts them: about a third of them is payload with small datagrams. Tunnels in
/// transit are paused, so they are few.
const WAITING_BYTES_MAX: usize = 16 * 1024;
/// The bound while a datagram is sent that exceeds it.
const LARGE_WAITING_BYTES_MAX: usize = DATAGRAM_BYTES_MAX + 8192;
/// Maximum number of descriptors with one datagram: the system's limit.
pub(crate) const DESCRIPTORS_MAX: usize = 253;
/// How long sending waits when too many descriptors are in flight, or when memory for them is short.
const IN_FLIGHT_WAIT: Duration = Duration::from_millis(2);
/// How long receiving waits where this process may open no more descriptors.
const DESCRIPTORS_WAIT: Duration = Duration::from_millis(10);

/// One end.
#[derive(Debug)]
pub(crate) struct Channel {
    end: OwnedFd,
    /// Memory to receive into.
    space: RefCell<Vec<u8>>,
    /// How long sending may wait.
    send_timeout: Cell<Option<Duration>>,
    /// The lack of descriptors has been reported.
    has_reported_fd_shortage: Cell<bool>,
}

/// A received datagram.
#[derive(Debug)]
pub(crate) struct Datagram {
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// The next item.
enum PeekedItem {
    Datagram(Datagram),
    /// This process may not open as many descriptors as came with it.
    NoDescriptors,
    TooLong,
    End,
}

impl Channel {
    /// Both ends.
    pub(crate) fn pair() -> io::Result<(Channel, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let ours = Channel::of(ours);
        ours.limit_waiting(WAITING_BYTES_MAX)?;
        Ok((ours, theirs))
    }

    /// The other process's end.
    pub(crate) fn new(end: OwnedFd) -> io::Result<Channel> {
        match socket_type(&end)? {
            SocketType::SEQPACKET => Ok(Channel::of(end)),
            _ => Err(Errno::NOTSOCK.into()),
        }
    }

    fn of(end: OwnedFd) -> Channel {
        Channel {
            end,
            space: RefCell::default(),
            send_timeout: Cell::default(),
            has_reported_fd_shortage: Cell::default(),
        }
    }

    /// Bounds how long sending waits for room; then it is an error of the kind `WouldBlock`.
    pub(crate) fn set_send_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.send_timeout.set(timeout);
        Ok(set_socket_timeout(&self.end, Timeout::Send, timeout)?)
    }

    /// The system doubles the requested size.
    fn limit_waiting(&self, bytes: usize) -> io::Result<()> {
        Ok(set_socket_send_buffer_size(&self.end, bytes / 2)?)
    }

    /// Waits until there is room.
    pub(crate) fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if bytes.len() <= WAITING_BYTES_MAX / 2 {
            return self.send_within(bytes, descriptors);
        }
        self.limit_waiting(LARGE_WAITING_BYTES_MAX)?;
        let sent = self.send_within(bytes, descriptors);
        self.limit_waiting(WAITING_BYTES_MAX)?;
        sent
    }

    fn send_within(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let end = self.send_timeout.get().map(|timeout| Instant::now() + timeout);
        loop {
            let mut beside = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(descriptors)) {
                return Err(Errno::TOOBIG.into());
            }
            match sendmsg(&self.end, &[IoSlice::new(bytes)], &mut beside, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                // More descriptors are in flight than the process may have open, and the other process takes them meanwhile; or the
                // system is short of memory.
                Err(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM)
                    if end.is_none_or(|end| Instant::now() < end) =>
                {
                    sleep(IN_FLIGHT_WAIT);
                }
                Err(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends no more: the other one receives an end after what is on its way.
    pub(crate) fn finish(&self) -> io::Result<()> {
        Ok(shutdown(&self.end, Shutdown::Write)?)
    }

    /// The next datagram; `None`: the other end is closed. An error of the kind `TimedOut`: none arrived in time, or descriptors
    /// for those that come with it are missing. An error of the kind `InvalidData`: it was too long, and those after it can be
    /// received.
    pub(crate) fn receive(&self, within: Option<Duration>) -> io::Result<Option<Datagram>> {
        let end = within.map(|within| Instant::now() + within);
        self.wait(within)?;
        // A datagram that is not received whole would be lost: so it is peeked at until it can be, and removed then.
        loop {
            match self.look()? {
                PeekedItem::Datagram(datagram) => return self.remove().map(|()| Some(datagram)),
                PeekedItem::TooLong => {
                    self.remove()?;
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is too long"));
                }
                PeekedItem::End => return Ok(None),
                PeekedItem::NoDescriptors if end.is_some_and(|end| Instant::now() >= end) => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                PeekedItem::NoDescriptors => {
                    if !self.has_reported_fd_shortage.replace(true) {
                        warn!(
                            "upgrade: no descriptors are left for what the former process hands over; it waits until some are"
                        );
                    }
                    sleep(DESCRIPTORS_WAIT);
                }
            }
        }
    }

    /// Waits for the next datagram and leaves it in the queue.
    fn look(&self) -> io::Result<PeekedItem> {
        let mut bytes = self.space.borrow_mut();
        bytes.resize(DATAGRAM_BYTES_MAX, 0);
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::PEEK;
        let received = loop {
            match recvmsg(&self.end, &mut [IoSliceMut::new(&mut bytes)], &mut beside, flags) {
                Err(Errno::INTR) => {}
                // It has ended without reading what we sent.
                Err(Errno::CONNRESET) => return Ok(PeekedItem::End),
                result => break result?,
            }
        };
        let descriptors = beside.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<OwnedFd>>(),
            _ => Vec::new(),
        });
        let descriptors: Vec<OwnedFd> = descriptors.collect();
        Ok(match received {
            // There is room for as many as can be sent.
            _ if received.flags.contains(ReturnFlags::CTRUNC) => PeekedItem::NoDescriptors,
            _ if received.flags.contains(ReturnFlags::TRUNC) => PeekedItem::TooLong,
            // An empty datagram is never sent.
            _ if received.bytes == 0 => PeekedItem::End,
            _ => PeekedItem::Datagram(Datagram { bytes: bytes[..received.bytes].to_vec(), descriptors }),
        })
    }

    /// Removes the one that was looked at.
    fn remove(&self) -> io::Result<()> {
        loop {
            match recv(&self.end, &mut [0; 1], RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Whether the next [`Channel::receive`] would not wait, at once or after this time.
    pub(crate) fn has_something(&self, within: Duration) -> bool {
        self.wait(Some(within)).is_ok()
    }

    fn wait(&self, within: Option<Duration>) -> io::Result<()> {
        let Some(within) = within else { return Ok(()) };
        let end = Instant::now() + within;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.end, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::os::fd::AsRawFd;

    fn pair() -> (Channel, Channel) {
        let (ours, theirs) = Channel::pair().unwrap();
        (ours, Channel::new(theirs).unwrap())
    }

    #[test]
    fn datagrams_and_descriptors_arrive_whole_and_in_order() {
        let (a, b) = pair();
        let file = tempfile::tempfile().unwrap();
        let large = vec![7; DATAGRAM_BYTES_MAX];
        let many = vec![file.as_fd(); DESCRIPTORS_MAX];
        a.send(b"first", &[file.as_fd(), file.as_fd()]).unwrap();
        a.send(b"second", &many).unwrap();
        let first = b.receive(Some(Duration::from_secs(120))).unwrap().unwrap();
        assert_eq!((first.bytes.as_slice(), first.descriptors.len()), (&b"first"[..], 2));
        let second = b.receive(None).unwrap().unwrap();
        assert_eq!((second.bytes.as_slice(), second.descriptors.len()), (&b"second"[..], DESCRIPTORS_MAX));
        for descriptor in first.descriptors.iter().chain(&second.descriptors) {
            assert!(rustix::io::fcntl_getfd(descriptor).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        }
        a.send(&large, &[]).unwrap();
        assert!(b.receive(None).unwrap().unwrap().bytes == large);
        assert!(a.send(b"x", &vec![file.as_fd(); DESCRIPTORS_MAX + 1]).is_err());
    }

    #[test]
    fn few_wait_and_a_large_one_fits_all_the_same() {
        let (a, b) = pair();
        a.set_send_timeout(Some(Duration::from_millis(200))).unwrap();
        for _ in 0..2 {
            let sent = (0..1000).take_while(|_| a.send(&[1; 800], &[]).is_ok()).count();
            assert!((2..=16).contains(&sent), "{sent}");
            (0..sent).for_each(|_| assert_eq!(b.receive(None).unwrap().unwrap().bytes.len(), 800));
            a.send(&vec![2; DATAGRAM_BYTES_MAX], &[]).unwrap();
            assert_eq!(b.receive(None).unwrap().unwrap().bytes.len(), DATAGRAM_BYTES_MAX);
        }
    }

    /// The test runs in a process of its own, since the others of this one need descriptors.
    #[test]
    fn without_descriptors_nothing_is_lost() {
        const CHILD: &str = "STILLGATE_TEST_WITHOUT_DESCRIPTORS";
        if std::env::var_os(CHILD).is_none() {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            again.args(["--exact", "upgrade::channel::tests::without_descriptors_nothing_is_lost"]).env(CHILD, "1");
            let output = again.output().unwrap();
            let passed = String::from_utf8_lossy(&output.stdout).contains("1 passed");
            assert!(output.status.success() && passed, "{output:?}");
            return;
        }
        let (a, b) = pair();
        let file = tempfile::tempfile().unwrap();
        for text in ["first", "second"] {
            a.send(text.as_bytes(), &[file.as_fd(), file.as_fd()]).unwrap();
        }
        // The next datagram is one of two.
        let mut fillers: Vec<OwnedFd> = vec![file.try_clone().unwrap().into()];
        let highest = fillers[0].as_raw_fd() as u64 + 2;
        let limit = Rlimit { current: Some(highest), maximum: getrlimit(Resource::Nofile).maximum };
        setrlimit(Resource::Nofile, limit).unwrap();
        let short = b.receive(Some(Duration::from_millis(50)));
        assert_eq!(short.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(file.try_clone().is_ok(), "what came of it is closed");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sleep(Duration::from_millis(50));
                fillers.clear();
            });
            for text in ["first", "second"] {
                let datagram = b.receive(Some(Duration::from_secs(120))).unwrap().unwrap();
                assert_eq!((datagram.bytes.as_slice(), datagram.descriptors.len()), (text.as_bytes(), 2));
            }
        });
    }

    #[test]
    fn ends_silence_and_foreign_descriptors_are_told_apart() {
        let (a, b) = pair();
        let late = b.receive(Some(Duration::from_millis(10)));
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
        a.send(&vec![1; DATAGRAM_BYTES_MAX + 1], &[]).unwrap();
        assert!(!a.has_something(Duration::ZERO) && b.has_something(Duration::ZERO));
        assert_eq!(b.receive(None).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(!b.has_something(Duration::ZERO));
        a.send(b"last", &[]).unwrap();
        drop(a);
        assert_eq!(b.receive(None).unwrap().unwrap().bytes, b"last");
        assert!(b.has_something(Duration::ZERO) && b.receive(None).unwrap().is_none());
        assert!(b.send(b"nobody", &[]).is_err());
        assert!(Channel::new(tempfile::tempfile().unwrap().into()).is_err());
    }
}
