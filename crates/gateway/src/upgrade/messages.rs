//! The messages between the two processes of an upgrade, before connections are handed over.
//!
//! A message is a datagram of JSON; descriptors travel with it. Unknown keys are ignored, so that a later version may send more; a
//! change that an earlier version must understand takes a new [`VERSION`].

use super::channel::{Channel, DATAGRAM_BYTES_MAX, DESCRIPTORS_MAX, Datagram};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use stillgate_config::ListenPlace;
use stillgate_proxy::handover::RouteDigest;

/// Version of these messages and of parcels.
pub(crate) const VERSION: u32 = 1;

/// Routes in one message.
const ROUTES_AT_ONCE: usize = 256;

/// One message.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// Old to new: the process that hands over. `digest` is the configuration's. The descriptor of the table of limits comes with
    /// it, if there is one. `had_end_flag`: a version of its file ended with `#END`, so the new process must not serve one that
    /// does not. An earlier version did not send it.
    Hello {
        version: u32,
        pid: u32,
        digest: String,
        #[serde(default)]
        had_end_flag: bool,
    },
    /// Old to new: a listener, with its descriptors; where they are too many, further messages repeat the fields. `digest` is what
    /// it does; `as_served`: the configuration of [`Message::Hello`] says so as well. An earlier version could not change it by a
    /// reload.
    Sockets { of: Part, place: ListenPlace, bound: ListenPlace, digest: u64, as_served: bool },
    /// Old to new: the address for other nodes of devices, as configured, with its socket. `epoch` is the node's, `filled` the era
    /// in which the directory has all its devices, and `members` are names and addresses of nodes. An earlier version did not send
    /// the latter two.
    Peers {
        place: ListenPlace,
        epoch: u64,
        #[serde(default)]
        filled: Option<u32>,
        #[serde(default)]
        members: Vec<(Box<str>, Box<str>)>,
    },
    /// Old to new: memory of the metrics, as a descriptor, or the folder that they are in.
    Metrics {
        #[serde(default)]
        shared: Option<String>,
    },
    /// Old to new: routes that may have tunnels.
    Routes { routes: Vec<RouteDigest> },
    /// Old to new: the end of the offer.
    End {},
    /// New to old: keys of those routes that it has.
    Has { routes: Vec<String> },
    /// New to old: it serves. The listeners that it has taken, and which of them work as before. `broadcasts`: it accepts reports
    /// about broadcasts, which an earlier version does not.
    Ready {
        listening: Vec<ListenPlace>,
        alike: Vec<ListenPlace>,
        #[serde(default)]
        broadcasts: bool,
    },
    /// Old to new: it exposes no more, and accepts none from the answer on. Parcels follow.
    Go {},
    /// New to old: it does all that the old one did, and serves alone from here on.
    Going {},
    /// New to old, which sends no more: it has all parcels.
    Taken {},
}

/// Owner of the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Part {
    Listener,
    Admin,
    Devices,
    Metrics,
}

impl Message {
    fn send(&self, channel: &Channel, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let text = serde_json::to_vec(self).expect("plain values have a JSON form");
        if text.len() > DATAGRAM_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an id of a route is too long to be told"));
        }
        channel.send(&text, descriptors)
    }

    /// The next message, and its datagram with the descriptors.
    pub(crate) fn receive(channel: &Channel, within: Option<Duration>) -> io::Result<Option<(Message, Datagram)>> {
        let Some(datagram) = channel.receive(within)? else { return Ok(None) };
        Ok(Some((Message::decode(&datagram)?, datagram)))
    }

    /// The message in a datagram.
    pub(crate) fn decode(datagram: &Datagram) -> io::Result<Message> {
        serde_json::from_slice(&datagram.bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("an unknown message: {error}")))
    }

    /// Sends it, as often as its descriptors take.
    pub(crate) fn send_with(&self, channel: &Channel, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if descriptors.is_empty() {
            return self.send(channel, &[]);
        }
        descriptors.chunks(DESCRIPTORS_MAX).try_for_each(|some| self.send(channel, some))
    }
}

/// Splits what may be long.
pub(crate) fn in_parts<T: Clone>(all: &[T]) -> impl Iterator<Item = Vec<T>> {
    all.chunks(ROUTES_AT_ONCE).map(<[T]>::to_vec)
}
