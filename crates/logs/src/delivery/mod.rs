//! One delivery of a batch: to a file, a socket, or a server of HTTP. Whether it is tried again is the sender's business.

mod file;
mod http;
mod socket;
mod tls;

use bytes::Bytes;
use file::Appended;
use http::Client;
use socket::{Datagrams, Stream};
use stillgate_plugin::outbox::{Entries, Outlet, Receiver};

/// Batches of one outlet that are posted at once.
const POSTS_AT_ONCE: usize = 4;

/// What became of a batch that has arrived.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// What was sent.
    pub(crate) bytes: u64,
    /// Entries that cannot be sent whatever happens.
    pub(crate) too_large: u64,
    /// Entries that the receiver did not take.
    pub(crate) refused: u64,
}

/// What is delivered, however often it is tried.
pub(crate) enum Payload {
    Whole(Bytes),
    /// Cut into datagrams as it goes.
    Entries(Entries),
}

/// What an outlet keeps from delivery to delivery: connections, an open file.
pub(crate) enum Delivery {
    File(Appended),
    Http(Box<Client>),
    Tcp(Stream),
    Udp(Datagrams),
}

impl Delivery {
    pub(crate) fn new(outlet: &Outlet) -> Delivery {
        match &outlet.receiver {
            Receiver::File(_) => Delivery::File(Appended::default()),
            Receiver::Http(_) => Delivery::Http(Box::default()),
            Receiver::Tcp(_) => Delivery::Tcp(Stream::default()),
            Receiver::Udp(_) => Delivery::Udp(Datagrams),
        }
    }

    /// How many batches go at once. Where they go one behind the other in one stream, they keep their order.
    pub(crate) fn at_once(&self) -> usize {
        match self {
            Delivery::Http(_) => POSTS_AT_ONCE,
            Delivery::File(_) | Delivery::Tcp(_) | Delivery::Udp(_) => 1,
        }
    }

    /// What is sent for a batch, whose entries are needed no longer.
    pub(crate) fn payload(&self, outlet: &Outlet, entries: Entries) -> Payload {
        if let Delivery::Udp(_) = self {
            return Payload::Entries(entries);
        }
        let sent_bytes: usize = entries.iter().map(|entry| entry.len().max(outlet.encode.sent_bytes(entry)) + 2).sum();
        let mut bytes = Vec::with_capacity(sent_bytes + 64);
        outlet.encode.encode(&entries, &mut bytes);
        Payload::Whole(bytes.into())
    }

    /// Delivers a batch, or says what went wrong, without anything that is secret.
    pub(crate) async fn run(&self, outlet: &Outlet, payload: &Payload) -> Result<Arrived, String> {
        let bytes = match (self, &outlet.receiver, payload) {
            (Delivery::File(file), Receiver::File(to), Payload::Whole(bytes)) => {
                file.append(&to.path, bytes.clone()).await?
            }
            (Delivery::Http(client), Receiver::Http(to), Payload::Whole(bytes)) => {
                let (bytes, refused) = client.post(to, bytes.clone()).await?;
                return Ok(Arrived { bytes, too_large: 0, refused });
            }
            (Delivery::Tcp(stream), Receiver::Tcp(to), Payload::Whole(bytes)) => stream.write(to, bytes).await?,
            (Delivery::Udp(datagrams), Receiver::Udp(to), Payload::Entries(entries)) => {
                return datagrams.send(to, entries, &*outlet.encode).await;
            }
            _ => return Err("an outlet has changed its receiver, which is a bug".to_owned()),
        };
        Ok(Arrived { bytes, ..Arrived::default() })
    }
}
