//! Plugins that are accepted and have no effect on a request.
//!
//! `proxy-control` and `proxy-buffering` have keys of nginx's buffers. Bodies are always forwarded piece by piece in both
//! directions, as `request_buffering: false` and `disable_proxy_buffering: true` request. Bodies are never written to a
//! file, which is what the opposite is for. `node-status` and `server-info` report through `public-api`.

use stillgate_plugin_api::{Compile, Define, Phases, Plugin};
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

object! {
    /// Reports connections and requests, through `public-api`.
    pub(crate) struct NodeStatusKeys {}
}

object! {
    /// No effect: what it reports is in `/v1/status` of the admin API.
    pub(crate) struct ServerInfoKeys {}
}

/// `proxy-control`
pub(crate) struct ProxyControl;

/// `proxy-buffering`
pub(crate) struct ProxyBuffering;

/// `node-status`
pub(crate) struct NodeStatus;

/// `server-info`
pub(crate) struct ServerInfo;

/// Defines a plugin without phases, from its keys, name and priority.
macro_rules! without_phases {
    ($plugin:ty, $keys:ty, $name:literal, $priority:literal) => {
        impl Plugin for $plugin {}

        impl Define for $plugin {
            type Keys = $keys;
            const NAME: &'static str = $name;
            const PRIORITY: i32 = $priority;
            const PHASES: Phases = Phases::NONE;

            fn compile(_: $keys, _: &mut Compile<'_>) -> Option<Self> {
                Some(Self)
            }
        }
    };
}

without_phases!(ProxyControl, ProxyControlKeys, "proxy-control", 21990);
without_phases!(ProxyBuffering, ProxyBufferingKeys, "proxy-buffering", 21991);
without_phases!(NodeStatus, NodeStatusKeys, "node-status", 1000);
without_phases!(ServerInfo, ServerInfoKeys, "server-info", 990);
