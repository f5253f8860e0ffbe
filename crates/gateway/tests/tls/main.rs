//! TLS through the binary: certificates, handshakes, client certificates, and certificates that ACME orders.

mod acme;
mod acme_orders;
mod acme_trouble;
mod certificates;
mod client_certificates;
mod failures;
mod foreign_names;
mod handshakes;
mod http2_tls;
mod renewal;
#[path = "../shared/mod.rs"]
mod shared;
mod stream_tls;
mod tls;
