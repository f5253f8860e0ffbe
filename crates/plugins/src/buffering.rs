//! `proxy-control` and `proxy-buffering`: keys of nginx's buffers, which are accepted and have no effect here.
//!
//! Bodies are always forwarded piece by piece in both directions, as `request_buffering: false` and
//! `disable_proxy_buffering: true` request. Bodies are never written to a file, which is what the opposite is for.

use crate::noop_plugins::without_phases;
use stillgate_schema::{Flag, object};

object! {
    /// Whether requests are buffered until they are complete.
    pub(crate) struct ProxyControlKeys {
        /// No effect: requests are forwarded as they come.
        request_buffering: bool = Flag => default(true);
    }
}

object! {
    /// Whether responses are buffered.
    pub(crate) struct ProxyBufferingKeys {
        /// No effect: responses are forwarded as they come.
        disable_proxy_buffering: bool = Flag => default(false);
    }
}

/// `proxy-control`
pub(crate) struct ProxyControl;

/// `proxy-buffering`
pub(crate) struct ProxyBuffering;

without_phases!(ProxyControl, ProxyControlKeys, "proxy-control", 21990);
without_phases!(ProxyBuffering, ProxyBufferingKeys, "proxy-buffering", 21991);
