//! What the two processes of an upgrade say to each other before connections are handed over.
//!
//! A message is a datagram of JSON; descriptors go beside it. Keys that are not known are ignored, so that a later version
//! may say more; what an earlier one cannot do without is a new [`VERSION`].

use super::channel::{Channel, DATAGRAM_BYTES_MAX, DESCRIPTORS_MAX, Datagram};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use stillgate_config::ListenPlace;
use stillgate_proxy::handover::RouteDigest;

/// Of these messages and of parcels.
pub(crate) const VERSION: u32 = 1;

/// Routes in one message.
const ROUTES_AT_ONCE: usize = 256;

/// One message.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// Old to new: who hands over. `digest` is the configuration's. Beside it the table of limits, where there is one.
    /// `had_end_flag`: a version of its file ended with `#END`, so the new process must not serve one that does not. An earlier
    /// version did not say it.
    Hello {
        version: u32,
        pid: u32,
        digest: String,
        #[serde(default)]
        had_end_flag: bool,
    },
    /// Old to new: what listens. Beside it its descriptors; where they are too many, further messages say the same. `digest` is
    /// what it does; `as_served`: the configuration of [`Message::Hello`] says so as well. An earlier version could not change it by a
    /// reload.
    Sockets { of: Part, place: ListenPlace, bound: ListenPlace, digest: u64, as_served: bool },
    /// Old to new: where other nodes of devices connect to, as configured. Beside it its socket. `epoch` is the node's, `filled` the
    /// era in which the directory has all its devices, and `members` are names and addresses of nodes. An earlier version did not
    /// tell the latter two.
    Peers {
        place: ListenPlace,
        epoch: u64,
        #[serde(default)]
        filled: Option<u32>,
        #[serde(default)]
        members: Vec<(Box<str>, Box<str>)>,
    },
    /// Old to new: memory of the metrics, beside it, or the folder that they are in.
    Metrics {
        #[serde(default)]
        shared: Option<String>,
    },
    /// Old to new: routes that may have tunnels.
    Routes { routes: Vec<RouteDigest> },
    /// Old to new: that was all.
    End {},
    /// New to old: keys of those that it has.
    Has { routes: Vec<String> },
    /// New to old: it serves. Listeners that it has taken, and which of them do as they did. `broadcasts`: it takes what is known of
    /// broadcasts, which an earlier version does not.
    Ready {
        listening: Vec<ListenPlace>,
        alike: Vec<ListenPlace>,
        #[serde(default)]
        broadcasts: bool,
    },
    /// Old to new: it exposes no more, and accepts none from the answer on. What follows are parcels.
    Go {},
    /// New to old: it does all that the old one did, and serves alone from here on.
    Going {},
    /// New to old, which sends no more: it has all parcels.
    Taken {},
}

/// Whose socket it is.
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

    /// The next one, and what came beside it.
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
