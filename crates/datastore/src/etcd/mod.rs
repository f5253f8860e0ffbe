//! A client of etcd v3 over its JSON gateway (`/v3/…`), with the layout of keys that APISIX uses.
//!
//! ```text
//!  Etcd ─▶ call: token, next endpoint ─▶ connection: TCP, TLS, HTTP/1.1 ─▶ etcd
//!   ├ list    everything at one revision, in pages
//!   ├ watch   what changes after a revision
//!   ├ commit  a transaction
//!   └ follow  list, then watch, again after each break; decides by `follower`, which does no IO
//!  saved: the file with the last snapshot, for starts without etcd
//! ```
//!
//! The gateway is part of every etcd, and APISIX's own client uses it too. A gRPC client would need `protoc` or
//! generated code. Values are not interpreted here, and only [`follow`] retries in the background.

mod call;
mod commit;
mod connection;
mod endpoint;
mod error;
mod follow;
mod follower;
mod layout;
mod list;
mod message;
mod options;
mod rotation;
mod saved_snapshot;
mod watch;

pub use error::EtcdError;
pub use follow::follow;
pub use follower::FollowerEvent;
pub use list::{ListResult, Unreadable};
pub use options::{EtcdOptions, EtcdTls, OptionsError};
pub use saved_snapshot::{SavedError, SavedSnapshot};
pub use watch::{EtcdWatch, EtcdWatchEvent};

use call::Caller;
use layout::KeyLayout;

/// One etcd, or the members of one cluster.
#[derive(Debug)]
pub struct Etcd {
    caller: Caller,
    layout: KeyLayout,
}

impl Etcd {
    /// Checks the options. Does not connect yet.
    ///
    /// # Errors
    /// The option that cannot be used, with a suggestion.
    pub fn new(options: EtcdOptions) -> Result<Etcd, OptionsError> {
        let layout = KeyLayout::new(&options.prefix)?;
        Ok(Etcd { caller: Caller::new(options)?, layout })
    }

    /// Its endpoints, for messages.
    pub fn endpoints(&self) -> String {
        self.caller.urls()
    }

    /// The prefix of all keys, without a slash at its end.
    pub fn prefix(&self) -> &str {
        self.layout.prefix()
    }
}
