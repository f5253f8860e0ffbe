//! What plugins settle of a request besides its head and its body.

use crate::arguments::Known;
use crate::definition::Identity;
use crate::record::Trace;
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::net::IpAddr;

/// What plugins have settled of one request.
#[derive(Default)]
pub struct Settled {
    /// What is dropped when the request has ended, by whatever it ends.
    pub held: Vec<Box<dyn Any>>,
    /// Who asks, and the port where that is known.
    pub client: Option<(IpAddr, Option<u16>)>,
    /// When that ends by which the request was authenticated, in seconds since 1970: of what goes on after the request, such as the
    /// connection of a device.
    pub authenticated_until: Cell<Option<f64>>,
    /// The key of the upstream that a plugin has chosen; empty: the route's own.
    upstream: String,
    /// The trace that the request is a part of, as the plugin says that has found or made it.
    pub trace: Option<Trace>,
    /// Spans that are open.
    pub spans: Vec<Span>,
    /// The request's id, as a plugin has set it; empty if none has.
    pub request_id: Vec<u8>,
    /// Of the body, as far as they have been waited for.
    pub(crate) arguments: Known,
}

/// A span of the gateway, from where it is opened to where the response is out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// [`crate::Compile::identity`] of the plugin that has opened it.
    pub plugin: Identity,
    /// Of the trace; its upper half is zero where it has 64 bits only.
    pub trace_id: u128,
    /// Its own.
    pub id: u64,
    /// Of the span it is a part of; zero: there is none.
    pub parent: u64,
    /// Of the span for what the node does; zero: there is none.
    pub node_id: u64,
    /// Whether it is recorded.
    pub is_sampled: bool,
}

impl Settled {
    /// Nothing, keeping some memory. What is held is let go.
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
    }

    /// Whether plugins have settled nothing that the end of the request needs.
    pub fn is_nothing(&self) -> bool {
        let Settled { held, client, authenticated_until: _, upstream, trace, spans, request_id, arguments: _ } = self;
        let is_unnamed = trace.is_none() && spans.is_empty() && request_id.is_empty();
        held.is_empty() && client.is_none() && upstream.is_empty() && is_unnamed
    }

    /// The request goes to this upstream; `None`: to that of its route, whatever was chosen before.
    pub fn choose_upstream(&mut self, key: Option<&str>) {
        self.upstream.clear();
        self.upstream.push_str(key.unwrap_or_default());
    }

    /// The key of the upstream that was chosen; `None`: the route's own.
    pub fn upstream(&self) -> Option<&str> {
        (!self.upstream.is_empty()).then_some(&*self.upstream)
    }

    /// The span of a configured plugin.
    pub fn span(&self, plugin: Identity) -> Option<Span> {
        self.spans.iter().find(|span| span.plugin == plugin).copied()
    }
}

impl fmt::Debug for Settled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settled").field("held", &self.held.len()).field("client", &self.client).finish()
    }
}
