//! `proxy-control` and `proxy-buffering`: keys of nginx's buffers, which are read and have no effect here.
//!
//! Bodies go on piece by piece in both directions, always: what `request_buffering: false` and `disable_proxy_buffering: true`
//! ask for. Nothing here writes a body to a file, which is what the opposite is for.

use crate::inert::without_phases;
use stillgate_schema::{Flag, object};

object! {
    /// Whether requests are held back until they are complete.
    pub(crate) struct ProxyControlKeys {
        /// No effect: requests are passed on as they come.
        request_buffering: bool = Flag => default(true);
    }
}

object! {
    /// Whether responses are held back.
    pub(crate) struct ProxyBufferingKeys {
        /// No effect: responses are passed on as they come.
        disable_proxy_buffering: bool = Flag => default(false);
    }
}

/// `proxy-control`
pub(crate) struct ProxyControl;

/// `proxy-buffering`
pub(crate) struct ProxyBuffering;

without_phases!(ProxyControl, ProxyControlKeys, "proxy-control", 21990);
without_phases!(ProxyBuffering, ProxyBufferingKeys, "proxy-buffering", 21991);
