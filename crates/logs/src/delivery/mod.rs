//! One delivery of a batch: to a file, a socket, or a server of HTTP. Whether it is tried again is the sender's business.

mod file;
mod http;
mod socket;
mod tls;

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

    /// Delivers a batch, or says what went wrong, without anything that is secret.
    pub(crate) async fn run(&self, outlet: &Outlet, entries: &Entries) -> Result<Arrived, String> {
        let encoded = || {
            let mut bytes = Vec::with_capacity(entries.bytes() + entries.len() * 2 + 64);
            outlet.encode.encode(entries, &mut bytes);
            bytes
        };
        let bytes = match (self, &outlet.receiver) {
            (Delivery::File(file), Receiver::File(to)) => file.append(&to.path, encoded()).await?,
            (Delivery::Http(client), Receiver::Http(to)) => {
                let (bytes, refused) = client.post(to, encoded()).await?;
                return Ok(Arrived { bytes, too_large: 0, refused });
            }
            (Delivery::Tcp(stream), Receiver::Tcp(to)) => stream.write(to, encoded()).await?,
            (Delivery::Udp(datagrams), Receiver::Udp(to)) => {
                return datagrams.send(to, entries, &*outlet.encode).await;
            }
            _ => return Err("an outlet has changed its receiver, which is a bug".to_owned()),
        };
        Ok(Arrived { bytes, ..Arrived::default() })
    }
}
