//! One request and its response, as a list of phases.
//!
//! ```text
//!  receive      facts computed once: host, path, client
//!  match        the route                                    matching
//!  rewrite      plugins, first those of global rules         chain
//!  consumer     plugins of the consumer                       | waiting, whole_body
//!  access       whether the request may go on                 | where a plugin waits
//!  target       upstream, bounds                             target
//!  admit        a place at the upstream                      queue
//!  before_proxy the last plugins, then the head of the node  forwarding
//!  attempts     one node after the other                     attempts ▶ attempt ▶ relay
//!  response     header_filter, framing, body                 response, body_pipe
//!  log          plugins, metrics, access log
//! ```
//!
//! Each phase may end the request with a local answer, and all of these take one path (`answer`). Bytes are moved by `relay`
//! between the two halves of each connection, `receiver` and `sender`.

pub(crate) mod answer;
pub(crate) mod attempt;
mod attempts;
pub(crate) mod body_pipe;
pub(crate) mod chain;
mod device;
mod exposition;
pub(crate) mod facts;
pub(crate) mod forwarding;
mod matching;
mod queue;
pub(crate) mod receiver;
mod record;
pub(crate) mod relay;
mod request;
mod response;
pub(crate) mod sender;
mod state;
pub(crate) mod target;
#[cfg(test)]
mod tests;
mod upgraded_exchange;
mod waiting_place;

pub(crate) use device::{BegunDevice, DeviceAdmission};
pub(crate) use request::RequestContext;
pub(crate) use request::{end_upgraded, refuse, run};
pub(crate) use state::{ConnectionNext, Exchange};
pub(crate) use upgraded_exchange::{Switch, UpgradedExchange, UpgradedRequest};
