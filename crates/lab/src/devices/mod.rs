//! `stillgate-lab devices`: mock devices that hold a WebSocket each, and a back-end that sends them messages by the
//! device API.
//!
//! ```text
//!  fleet ── epoll ──┬─ device … device      connect, answer, drop, come back
//!                   └─ back_end … back_end  POST /v1/devices/{id}/messages, keep-alive, on a schedule
//!                          └─ ledger: what was sent, received and answered
//! ```
//!
//! One thread does all of it: deliveries and answers are compared without a lock, and the other CPUs are left to the
//! gateway. [`plan`] holds the arguments, [`run`] the phases of one run and two gateways in alternation, and
//! [`analysis`] a pure function of the rounds. [`words`] formats the results.

pub(crate) mod analysis;
mod device;
mod fleet;
mod ledger;
pub(crate) mod plan;
pub(crate) mod run;
mod sockets;
pub(crate) mod words;
