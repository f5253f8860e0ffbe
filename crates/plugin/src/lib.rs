//! The interface of plugins: their phases, their view of a request and a response, the changes that they can make, and
//! their answers.
//!
//! ```text
//!  configuration ── Descriptor::compile ──▶ Entry (one configured plugin, compiled once where it is defined)
//!  entries of route, plugin_config, service, global rules ── Chain::merge ──▶ Chain (in the order of priority)
//!  a request ── rewrite → access → before_proxy ──▶ node ── header_filter → body_filter → log
//! ```
//!
//! The phases and their order are APISIX's. The crate contains no plugin: each is a file in `stillgate-plugins` with a
//! line in its table. It does no IO; time and randomness are arguments.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod answer;
pub mod arguments;
pub mod body;
pub mod calls;
pub mod chain;
pub mod consumers;
pub mod definition;
pub mod device;
pub mod facts;
pub mod filter;
pub mod flow;
pub mod io;
pub mod json;
mod link;
pub mod meta;
pub mod outbox;
pub mod own;
pub mod per_worker;
pub mod phase;
pub mod query;
pub mod record;
pub mod request;
pub mod request_state;
pub mod response;
pub mod scripts;
pub mod secrets;
pub mod table;
pub mod template;
pub mod upstreams;
pub mod worker;

pub use answer::{Answer, AnswerBody};
pub use arguments::Arguments;
pub use body::{BodyChanges, BodyError, BodyFilter, Direction};
pub use calls::{Call, CallError, Keep, Reply, ServerOrigin as CallOrigin, Url};
pub use chain::{BodyArguments, CHAIN_ENTRIES_MAX, Chain, ChainEntry, Level, PluginOrigin};
pub use consumers::{AttachedConsumer, Consumer, Consumers, Credential, Proof};
pub use definition::{
    Authenticate, Compile, CompileCredential, Define, Descriptor, Identity, Metadata, MetadataItem, MetadataTable,
};
pub use device::{Device, DeviceSettings, EventSettings};
pub use facts::{Facts, TlsVariables};
pub use filter::Filter;
pub use flow::{Flow, LocalFuture, QueueFull};
pub use io::{Io, LogLevel};
pub use link::{Exchange, Exchanged, Link, LinkTo, Whole};
pub use meta::Meta;
pub use outbox::Outbox;
pub use own::{OwnFile, OwnPlugin, OwnPlugins};
pub use per_worker::PerWorker;
pub use phase::{Phase, Phases};
pub use record::{Process, Record, Trace};
pub use request::Request;
pub use request_state::{OpenSpan, RequestState};
pub use response::{LogValues, Response};
pub use scripts::Scripts;
pub use secrets::{NoSecrets, Secret, Secrets};
pub use table::{Ignorable, PluginTable};
pub use template::{Template, TemplatePart};
pub use upstreams::{NoUpstreams, OwnUpstream, Upstreams};
pub use worker::{ProcessTotals, Worker};

use std::sync::Arc;
use stillgate_route::Variable;

/// One configured plugin, which workers run. It is shared by all of them, so its mutable state is elsewhere: in a
/// request, in [`Worker`], or in a [`PerWorker`].
///
/// A phase that is not in [`Define::PHASES`] is never called.
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
        body::FILTER_BYTES_MAX
    }

    /// Whether its effect depends on the consumer, so that it makes little sense without authentication.
    fn reads_consumer(&self) -> bool {
        false
    }

    /// Whether it needs the documents of a request's route and service: [`facts::RouteFacts::documents`].
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

    /// The upstreams that are written in its configuration, as returned by [`Upstreams::written`].
    fn own_upstreams(&self) -> &[OwnUpstream] {
        &[]
    }

    /// The settings for devices whose connections its requests become; `None`: they do not.
    fn devices(&self) -> Option<&Arc<DeviceSettings>> {
        None
    }

    /// Whether it counts in [`Worker::limits`], whose memory is allocated only if some plugin does.
    fn needs_limits(&self) -> bool {
        false
    }
}
