//! The `Host` that a node gets.

use super::Exchange;
use stillgate_config::PassHost;

/// The `Host` that a node gets if it is not the client's own line.
pub(crate) fn host_for<'a>(exchange: &'a Exchange, pass_host: &'a PassHost, node_host: &'a str) -> &'a [u8] {
    let authority = exchange.request.authority.of(exchange.from_client.head());
    host_of(exchange.request_edits.host(), authority, pass_host, node_host)
}

/// Like `host_for`, from the parts of an exchange: the host that a plugin has set, and the one that was requested.
pub(crate) fn host_of<'a>(
    set: Option<&'a [u8]>,
    authority: &'a [u8],
    pass_host: &'a PassHost,
    node_host: &'a str,
) -> &'a [u8] {
    if let Some(host) = set {
        return host;
    }
    match pass_host {
        PassHost::Rewrite(host) => host.as_bytes(),
        PassHost::Pass if !authority.is_empty() => authority,
        // HTTP/1.0 without Host: only the node's own name is available.
        PassHost::Pass | PassHost::Node => node_host.as_bytes(),
    }
}
