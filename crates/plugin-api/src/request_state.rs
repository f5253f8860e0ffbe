//! State of a request that plugins set, besides its head and its body.

use crate::arguments::values::ReadArguments;
use crate::facts::Facts;
use crate::identity::Identity;
use crate::record::Trace;
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::net::IpAddr;

/// The state of one request.
#[derive(Default)]
pub struct RequestState {
    /// Guards, which are dropped when the request has ended in any way.
    pub held: Vec<Box<dyn Any>>,
    /// The client's address, and its port if it is known.
    pub client: Option<(IpAddr, Option<u16>)>,
    /// Expiry of the request's authentication, in seconds since 1970: it limits what outlives the request, such as the
    /// connection of a device.
    pub authenticated_until: Cell<Option<f64>>,
    /// The key of the upstream that a plugin has chosen; empty: the route's own.
    upstream: String,
    /// The trace context that a plugin has found or created.
    pub trace: Option<Trace>,
    /// Open spans.
    pub spans: Vec<OpenSpan>,
    /// The request's id, if a plugin has set it; otherwise empty.
    pub request_id: Vec<u8>,
    /// The arguments of the body that have been read.
    pub(crate) arguments: ReadArguments,
    /// The query as plugins have left it: without hidden credentials, or with arguments of a function. `None`: as it came.
    pub(crate) query: Option<Vec<u8>>,
    /// The client's path and query without hidden credentials. `None`: none were hidden.
    pub(crate) redacted_target: Option<Vec<u8>>,
}

/// A span of the gateway, from its start to the end of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenSpan {
    /// [`crate::Compile::identity`] of the plugin that has opened it.
    pub plugin: Identity,
    /// Id of the trace; its upper half is zero if it has only 64 bits.
    pub trace_id: u128,
    /// Id of the span.
    pub id: u64,
    /// Id of the parent span; zero: none.
    pub parent: u64,
    /// Id of the span for the node's work; zero: none.
    pub node_id: u64,
    /// Whether it is sampled.
    pub is_sampled: bool,
}

impl RequestState {
    /// Clears the state, and keeps some memory. Guards are dropped.
    #[inline]
    pub fn clear(&mut self) {
        self.held.clear();
        self.client = None;
        self.authenticated_until.set(None);
        self.upstream.clear();
        self.trace = None;
        self.spans.clear();
        self.request_id.clear();
        self.arguments.clear();
        self.query = None;
        self.redacted_target = None;
    }

    /// Whether the state contains nothing that the end of the request needs.
    pub fn is_nothing(&self) -> bool {
        let RequestState {
            held,
            client,
            authenticated_until: _,
            upstream,
            trace,
            spans,
            request_id,
            arguments: _,
            query: _,
            redacted_target: _,
        } = self;
        let is_unnamed = trace.is_none() && spans.is_empty() && request_id.is_empty();
        held.is_empty() && client.is_none() && upstream.is_empty() && is_unnamed
    }

    /// Path and query as the client sent them, without the credentials that plugins have hidden: for servers other than nodes,
    /// such as those of loggers.
    pub fn redacted_target<'a>(&'a self, facts: &Facts<'a>) -> &'a [u8] {
        self.redacted_target.as_deref().unwrap_or_else(|| facts.path_and_query())
    }

    /// Chooses an upstream; `None`: that of the route, whatever was chosen before.
    pub fn choose_upstream(&mut self, key: Option<&str>) {
        self.upstream.clear();
        self.upstream.push_str(key.unwrap_or_default());
    }

    /// The key of the chosen upstream; `None`: the route's own.
    pub fn upstream(&self) -> Option<&str> {
        (!self.upstream.is_empty()).then_some(&*self.upstream)
    }

    /// The span of a configured plugin.
    pub fn span(&self, plugin: Identity) -> Option<OpenSpan> {
        self.spans.iter().find(|span| span.plugin == plugin).copied()
    }
}

impl fmt::Debug for RequestState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestState").field("held", &self.held.len()).field("client", &self.client).finish()
    }
}
