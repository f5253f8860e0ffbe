//! Datagrams with descriptors between two processes, in order and without loss.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Bytes of a datagram: the largest parcel has a head and two full buffers. The system's default for a socket's buffer takes it.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 192 * 1024;
/// Descriptors beside one: what the system takes.
pub(crate) const DESCRIPTORS_MAX: usize = 253;
/// How long sending waits where too many descriptors are on their way.
const IN_FLIGHT_WAIT: Duration = Duration::from_millis(2);

/// One end, and memory to receive into.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd, RefCell<Vec<u8>>);

/// What came.
#[derive(Debug)]
pub(crate) struct Datagram {
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Channel {
    /// Both ends.
    pub(crate) fn pair() -> io::Result<(Channel, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Channel(ours, RefCell::default()), theirs))
    }

    /// The other process's end.
    pub(crate) fn new(end: OwnedFd) -> io::Result<Channel> {
        match socket_type(&end)? {
            SocketType::SEQPACKET => Ok(Channel(end, RefCell::default())),
            _ => Err(Errno::NOTSOCK.into()),
        }
    }

    /// Bounds how long sending waits for room; then it is an error of the kind `WouldBlock`.
    pub(crate) fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        Ok(set_socket_timeout(&self.0, Timeout::Send, patience)?)
    }

    /// Waits until there is room.
    pub(crate) fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        loop {
            let mut beside = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(descriptors)) {
                return Err(Errno::TOOBIG.into());
            }
            match sendmsg(&self.0, &[IoSlice::new(bytes)], &mut beside, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                // More are on their way than the process may have open: the other one takes them meanwhile.
                Err(Errno::TOOMANYREFS) => sleep(IN_FLIGHT_WAIT),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next datagram; `None`: the other end is closed. An error of the kind `TimedOut`: there was none in time.
    pub(crate) fn receive(&self, within: Option<Duration>) -> io::Result<Option<Datagram>> {
        self.wait(within)?;
        let mut bytes = self.1.borrow_mut();
        bytes.resize(DATAGRAM_BYTES_MAX, 0);
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut beside, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                // It has ended without reading what we sent.
                Err(Errno::CONNRESET) => return Ok(None),
                result => break result?,
            }
        };
        let descriptors = beside.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<OwnedFd>>(),
            _ => Vec::new(),
        });
        let descriptors: Vec<OwnedFd> = descriptors.collect();
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is too long"));
        }
        // An empty datagram is never sent.
        if received.bytes == 0 {
            return Ok(None);
        }
        Ok(Some(Datagram { bytes: bytes[..received.bytes].to_vec(), descriptors }))
    }

    fn wait(&self, within: Option<Duration>) -> io::Result<()> {
        let Some(within) = within else { return Ok(()) };
        let end = Instant::now() + within;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&left)) {
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
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let first = b.receive(Some(Duration::from_secs(5))).unwrap().unwrap();
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
    fn ends_silence_and_foreign_descriptors_are_told_apart() {
        let (a, b) = pair();
        let late = b.receive(Some(Duration::from_millis(10)));
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
        a.send(&vec![1; DATAGRAM_BYTES_MAX + 1], &[]).unwrap();
        assert_eq!(b.receive(None).unwrap_err().kind(), io::ErrorKind::InvalidData);
        a.send(b"last", &[]).unwrap();
        drop(a);
        assert_eq!(b.receive(None).unwrap().unwrap().bytes, b"last");
        assert!(b.receive(None).unwrap().is_none());
        assert!(b.send(b"nobody", &[]).is_err());
        assert!(Channel::new(tempfile::tempfile().unwrap().into()).is_err());
    }
}
