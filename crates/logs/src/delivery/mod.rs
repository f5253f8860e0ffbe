//! One delivery of a batch: to a file, a socket, or an HTTP server. The sender decides whether to try again.

mod file;
mod http;
mod socket;
mod tls;

use bytes::Bytes;
use file::AppendFile;
use http::OutletClient;
use socket::{Datagrams, OutletSocket};
use stillgate_plugin::outbox::{Entries, Outlet, Receiver};

/// Batches of one outlet that are posted concurrently.
const POSTS_AT_ONCE: usize = 4;

/// The result of a batch that has arrived.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeliveryReport {
    /// Bytes sent.
    pub(crate) bytes: u64,
    /// Entries that can never be sent.
    pub(crate) too_large: u64,
    /// Entries that the receiver rejected.
    pub(crate) refused: u64,
}

/// The content to deliver, for all tries.
pub(crate) enum Payload {
    Whole(Bytes),
    /// Split into datagrams when sent.
    Entries(Entries),
}

/// State that an outlet keeps between deliveries: connections, an open file.
pub(crate) enum Delivery {
    File(AppendFile),
    Http(Box<OutletClient>),
    Tcp(OutletSocket),
    Udp(Datagrams),
}

impl Delivery {
    pub(crate) fn new(outlet: &Outlet) -> Delivery {
        match &outlet.receiver {
            Receiver::File(_) => Delivery::File(AppendFile::default()),
            Receiver::Http(_) => Delivery::Http(Box::default()),
            Receiver::Tcp(_) => Delivery::Tcp(OutletSocket::default()),
            Receiver::Udp(_) => Delivery::Udp(Datagrams),
        }
    }

    /// How many batches are delivered concurrently. Batches in one stream are sent one after the other, to keep their
    /// order.
    pub(crate) fn at_once(&self) -> usize {
        match self {
            Delivery::Http(_) => POSTS_AT_ONCE,
            Delivery::File(_) | Delivery::Tcp(_) | Delivery::Udp(_) => 1,
        }
    }

    /// The content to send for a batch, whose entries are not needed afterwards.
    pub(crate) fn payload(&self, outlet: &Outlet, entries: Entries) -> Payload {
        if let Delivery::Udp(_) = self {
            return Payload::Entries(entries);
        }
        let sent_bytes: usize = entries.iter().map(|entry| entry.len().max(outlet.encode.sent_bytes(entry)) + 2).sum();
        let mut bytes = Vec::with_capacity(sent_bytes + 64);
        outlet.encode.encode(&entries, &mut bytes);
        Payload::Whole(bytes.into())
    }

    /// Delivers a batch, or returns the error, without secrets.
    pub(crate) async fn run(&self, outlet: &Outlet, payload: &Payload) -> Result<DeliveryReport, String> {
        let bytes = match (self, &outlet.receiver, payload) {
            (Delivery::File(file), Receiver::File(to), Payload::Whole(bytes)) => {
                file.append(&to.path, bytes.clone()).await?
            }
            (Delivery::Http(client), Receiver::Http(to), Payload::Whole(bytes)) => {
                let (bytes, refused) = client.post(to, bytes.clone()).await?;
                return Ok(DeliveryReport { bytes, too_large: 0, refused });
            }
            (Delivery::Tcp(stream), Receiver::Tcp(to), Payload::Whole(bytes)) => stream.write(to, bytes).await?,
            (Delivery::Udp(datagrams), Receiver::Udp(to), Payload::Entries(entries)) => {
                return datagrams.send(to, entries, &*outlet.encode).await;
            }
            _ => return Err("an outlet has changed its receiver, which is a bug".to_owned()),
        };
        Ok(DeliveryReport { bytes, ..DeliveryReport::default() })
    }
}
