//! Certificates and keys, checked when a configuration is loaded and made ready for handshakes.
//!
//! ```text
//!  Config ── Material::load ──> ServerTls: server name ──> rustls::ServerConfig, one for each entry of `ssls`
//!            │  pem, identity, ocsp:                      ClientTls: one for each upstream with `scheme: https`
//!            └  what cannot be used is refused here, with the file and what to do
//! ```
//!
//! An entry whose files did not change is the same one after a reload, with its session tickets' keys: clients resume their
//! sessions. Handshakes themselves are `rustls`'s business, and connections the proxy's. Nothing here does IO.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod client;
mod client_auth;
mod client_certificate;
mod entry;
mod handshake_failure;
mod identity;
mod loading;
mod material;
mod ocsp;
mod ordered_certificate;
mod peer_chain;
mod pem;
mod problem;
mod provider;
mod server;
#[cfg(test)]
mod tests;

pub use client::{ClientTls, ServiceRoots, towards_service, towards_service_as};
pub use client_auth::ClientCa;
pub use client_certificate::{ClientCertificate, client_certificate};
pub use handshake_failure::FailureReason;
pub use handshake_failure::{Peer, handshake_failure};
pub use material::{Inputs, Material, files_of};
pub use ordered_certificate::{ACME_TLS_ALPN, OrderedCertificateInfo, acme_challenge};
pub use peer_chain::{client_verifier, server_verifier};
pub use pem::{FILE_BYTES_MAX, Files};
pub use problem::{Problem, TlsFindings, TlsProblems};
pub use provider::{provider, request};
pub use rustls;
pub use server::{Offer, ServerChoice, ServerTls, UNRECOGNIZED_NAME};
