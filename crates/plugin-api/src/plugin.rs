//! A plugin with its configuration, as workers run it: its phases, and its entry in chains, with the
//! resource that it is from.

use crate::arguments::values::Arguments;
use crate::body::FILTER_BYTES_MAX;
use crate::device::DeviceSettings;
use crate::flow::Flow;
use crate::identity::Identity;
use crate::meta::Meta;
use crate::metadata::MetadataTable;
use crate::phase::{Phase, Phases};
use crate::request::Request;
use crate::response::Response;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use stillgate_route::Variable;
use stillgate_schema::Position;

/// An upstream written in a plugin's configuration, as a handle for its compiler.
pub type OwnUpstream = Arc<dyn Any + Send + Sync>;

/// One configured plugin, which workers run. It is shared by all of them, so its mutable state is elsewhere: in a
/// request, in [`Worker`](crate::Worker), or in a [`PerWorker`](crate::PerWorker).
///
/// A phase that is not in [`Define::PHASES`](crate::Define::PHASES) is never called.
pub trait Plugin: Send + Sync + 'static {
    /// Before the consumer is known; authentication happens here.
    fn rewrite(&self, _request: &mut Request<'_>) -> Flow {
        Flow::Continue
    }

    /// Decides whether the request may continue.
    fn access(&self, _request: &mut Request<'_>) -> Flow {
        Flow::Continue
    }

    /// Just before the request is forwarded.
    fn before_proxy(&self, _request: &mut Request<'_>) -> Flow {
        Flow::Continue
    }

    /// The head of the response is available, from a node or of the gateway's own. Filters of its body are set here
    /// ([`Response::body`]): framing is chosen after them.
    fn header_filter(&self, _response: &mut Response<'_>) {}

    /// All plugins have seen the head of the response and set their filters: plugins that code content for the client
    /// set theirs here, behind them, whatever their priority. Called if [`Plugin::codes_content`] returns true.
    fn code_content(&self, _response: &mut Response<'_>) {}

    /// Whether it codes content for the client, as gzip does.
    fn codes_content(&self) -> bool {
        false
    }

    /// Whether it may read or change the bodies of nodes' responses. Then nodes get requests for whole bodies only, in
    /// codings that a filter can decode.
    fn filters_responses(&self) -> bool {
        false
    }

    /// The response has been sent.
    fn log(&self, _response: &mut Response<'_>) {}

    /// The subset of the plugin's phases that this configuration needs.
    fn phases(&self) -> Phases {
        Phases::of(&Phase::ALL)
    }

    /// Calls `visit` with the variables that it uses. Those in the body are read before its first call, in `rewrite` or
    /// `access`, and known from then on. Variables that it does not name here are not available to it.
    fn each_variable(&self, _visit: &mut dyn FnMut(&Variable)) {}

    /// Largest body for that; a larger one is answered with 413.
    fn arguments_bytes_max(&self) -> usize {
        FILTER_BYTES_MAX
    }

    /// Whether its effect depends on the consumer, so that it makes little sense without authentication.
    fn reads_consumer(&self) -> bool {
        false
    }

    /// Whether it needs the documents of a request's route and service: [`RouteFacts::documents`](crate::facts::RouteFacts::documents).
    fn wants_documents(&self) -> bool {
        false
    }

    /// The part of the plugin's configuration that is missing from both the configuration and the metadata.
    fn lacks(&self, _metadata: &MetadataTable) -> Option<&'static str> {
        None
    }

    /// Whether metrics label routes and services by their names instead of their ids.
    fn prefers_names(&self) -> bool {
        false
    }

    /// The plugins whose credentials it uses, if it authenticates through others. Empty: it authenticates by itself, or
    /// not at all.
    fn asks_for(&self) -> &[&'static str] {
        &[]
    }

    /// Takes its kind of credentials out of the request, right or wrong, if it is configured to hide them. Called where another
    /// plugin has authenticated the request.
    fn hide_credentials(&self, _request: &mut Request<'_>) {}

    /// A name under which this configuration shares its state with others, and the part that must be equal in all of
    /// them.
    fn shared(&self) -> Option<(&str, Identity)> {
        None
    }

    /// Calls `visit` with each header field of requests that it reads under a name from its configuration: the key that names
    /// it, and the name. Those with a `_` never arrive where the gateway drops them.
    fn each_field_read(&self, _visit: &mut dyn FnMut(&str, &[u8])) {}

    /// The consumer that it names for clients without credentials.
    fn named_consumer(&self) -> Option<&str> {
        None
    }

    /// The upstreams that are written in its configuration, as returned by [`Upstreams::register_own`](crate::Upstreams::register_own).
    fn own_upstreams(&self) -> &[OwnUpstream] {
        &[]
    }

    /// The settings for devices whose connections its requests become; `None`: they do not.
    fn devices(&self) -> Option<&Arc<DeviceSettings>> {
        None
    }

    /// Whether it counts in [`Worker::limits`](crate::Worker::limits), whose memory is allocated only if some plugin does.
    fn needs_limits(&self) -> bool {
        false
    }
}

/// One plugin with one configuration, compiled where it is defined and shared by every chain that contains it.
pub struct ChainEntry {
    /// The plugin's name.
    pub name: &'static str,
    /// `_meta.priority`, or the plugin's own.
    pub priority: i32,
    /// The phases in which it is called.
    pub phases: Phases,
    /// Whether it authenticates clients.
    pub authenticates: bool,
    /// The keys that every plugin has.
    pub meta: Meta,
    /// The arguments to wait for before it is called.
    pub awaited: BodyArguments,
    /// The resource that contains it.
    pub origin: PluginOrigin,
    /// Position in the file.
    pub at: Position,
    /// Digest of its whole configuration, including `_meta` and resolved secrets.
    pub identity: Identity,
    /// The plugin.
    pub plugin: Box<dyn Plugin>,
}

/// Arguments of the body that an entry needs.
#[derive(Debug, Default)]
pub struct BodyArguments {
    /// For its filter.
    pub by_filter: Option<Arguments>,
    /// For its plugin.
    pub by_plugin: Option<Arguments>,
}

/// Omits the configuration, which may hold secrets.
impl fmt::Debug for ChainEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.name, self.origin)
    }
}

/// Compares the identity: equal for the same configuration in the same resource, compiled once or twice.
impl PartialEq for ChainEntry {
    fn eq(&self, other: &ChainEntry) -> bool {
        self.identity == other.identity
    }
}

/// The resource that contains a plugin's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PluginOrigin {
    /// The type of the resource.
    pub level: PluginLevel,
    /// The resource's id.
    pub id: Box<str>,
}

/// The types of resources that have plugins. Later ones override earlier ones, plugin by plugin; global rules are
/// separate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PluginLevel {
    /// `global_rules`
    GlobalRule,
    /// `services`
    Service,
    /// `plugin_configs`
    PluginConfig,
    /// `routes`
    Route,
    /// `consumer_groups`
    ConsumerGroup,
    /// `consumers`
    Consumer,
    /// `plugin_metadata`
    Metadata,
}

impl PluginLevel {
    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            PluginLevel::GlobalRule => "global rule",
            PluginLevel::Service => "service",
            PluginLevel::PluginConfig => "plugin config",
            PluginLevel::Route => "route",
            PluginLevel::ConsumerGroup => "consumer group",
            PluginLevel::Consumer => "consumer",
            PluginLevel::Metadata => "plugin metadata",
        }
    }
}

impl fmt::Display for PluginOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.level.name(), self.id)
    }
}
