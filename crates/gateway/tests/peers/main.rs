//! Third-party suites and clients: h2spec, Chromium, curl, h11, and a device in Go.

mod browser;
mod devices_go;
mod h2spec;
mod peers;
#[path = "../shared/mod.rs"]
mod shared;
mod tls_peers;
