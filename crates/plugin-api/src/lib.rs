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
pub mod client_bound;
pub mod consumers;
pub mod custom;
pub mod definition;
pub mod device;
pub mod facts;
pub mod flow;
pub mod identity;
pub mod json;
pub mod meta;
pub mod metadata;
pub mod outbox;
pub mod phase;
pub mod plugin;
pub mod query;
pub mod record;
pub mod request;
pub mod request_state;
pub mod response;
pub mod secrets;
pub mod table;
pub mod template;
pub mod work;
pub mod worker;

pub use answer::{Answer, AnswerBody};
pub use arguments::Arguments;
pub use body::{BodyChanges, BodyError, BodyFilter, Direction};
pub use calls::{Call, CallError, CallOrigin, Exchange, Keep, Link, LinkReply, LinkTo, Reply, ReplyEndFinder, Url};
pub use chain::{CHAIN_ENTRIES_MAX, Chain};
pub use consumers::{Consumer, ConsumerRef, Consumers, Credential, CredentialVerifier};
pub use custom::{CustomPlugin, CustomPlugins, PluginFile, Scripts};
pub use definition::{Authenticate, Compile, CompileCredential, Define, Descriptor, Metadata, NoUpstreams, Upstreams};
pub use device::{Device, DeviceSettings, EventReceiverSettings};
pub use facts::{Facts, TlsVariables};
pub use flow::Flow;
pub use identity::Identity;
pub use meta::Filter;
pub use meta::Meta;
pub use metadata::{MetadataItem, MetadataTable};
pub use outbox::Outbox;
pub use phase::{Phase, Phases};
pub use plugin::{BodyArguments, ChainEntry, OwnUpstream, Plugin, PluginLevel, PluginOrigin};
pub use record::{Record, ServingProcess, Trace};
pub use request::Request;
pub use request_state::{OpenSpan, RequestState};
pub use response::{LogValues, Response};
pub use secrets::{NoSecrets, Secret, Secrets};
pub use table::{Ignorable, PluginTable};
pub use template::{Template, TemplatePart};
pub use work::{LocalFuture, QueueFull};
pub use worker::{Io, LogLevel, PerWorker, ProcessTotals, Worker};
