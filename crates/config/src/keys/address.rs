//! The addresses on which something listens.

use std::net::SocketAddr;
use stillgate_schema::kind::{Text, text};
use stillgate_schema::text::diagnostic::Fault;

/// Where something listens.
pub(crate) const ADDRESS: Text<SocketAddr> = text("an address as IP:PORT", parse_address);

fn parse_address(text: &str) -> Result<SocketAddr, Fault> {
    text.parse().map_err(|_| {
        let fault = Fault::new(format!("expected an address as IP:PORT, found {text:?}"));
        match text.rsplit_once(':') {
            Some(("" | "*", port)) => fault.hint(format!("write \"0.0.0.0:{port}\"")),
            Some(("localhost", port)) => fault.hint(format!("write \"127.0.0.1:{port}\"")),
            _ => fault.hint("write it like \"0.0.0.0:9080\" or \"[::]:9080\""),
        }
    })
}
