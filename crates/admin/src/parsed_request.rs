//! A request in parts, as handlers get it.

use crate::answer::Answer;
use crate::api::Api;
use crate::body::{LARGE_BYTES_MIN, MANY_BYTES_MAX, SINGLE_BYTES_MAX, SMALL_BYTES_MAX, parse, read};
use crate::collections::Verb;
use crate::endpoints::Action;
use crate::query::Query;
use crate::resource::address::Address;
use axum::extract::Request;
use axum::http::{HeaderMap, Method};
use bytes::Bytes;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use stillgate_door::{Caller, Peer};
use tokio::sync::OwnedSemaphorePermit;

/// A request in parts.
pub(crate) struct ParsedRequest {
    pub(crate) caller: Caller,
    pub(crate) peer: IpAddr,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) parts: BTreeMap<String, String>,
    pub(crate) body: Bytes,
    /// Held until the request is answered if its body is large: processing a body takes more memory than the body itself. Work on
    /// another thread, which continues if the client disconnects, holds it too.
    pub(crate) place: Option<Arc<OwnedSemaphorePermit>>,
}

impl ParsedRequest {
    /// Reads the body if the action uses it: an unused body takes no memory.
    pub(crate) async fn of(
        api: &Api,
        action: Action,
        request: Request,
        parts: BTreeMap<String, String>,
    ) -> Result<ParsedRequest, Answer> {
        let peer = Peer::of(&request);
        let (head, body) = request.into_parts();
        let place = || async {
            let place = api.large_bodies.clone().acquire_owned().await;
            Some(Arc::new(place.expect("the semaphore is never closed")))
        };
        let (body, place) = match action {
            Action::Resource(Verb::Get | Verb::Delete, _) => (Bytes::new(), None),
            Action::Resource(..) | Action::SchemaValidate => {
                let body = read(&head.headers, body, SINGLE_BYTES_MAX).await?;
                let is_large = body.len() >= LARGE_BYTES_MIN;
                (body, if is_large { place().await } else { None })
            }
            Action::SessionOpen | Action::RollBack => (read(&head.headers, body, SMALL_BYTES_MAX).await?, None),
            Action::ConfigsReplace | Action::ConfigsValidate | Action::Batch => {
                let place = place().await;
                (read(&head.headers, body, MANY_BYTES_MAX).await?, place)
            }
            _ => (Bytes::new(), None),
        };
        let caller = head.extensions.get::<Caller>().cloned().expect("the guard lets nobody by without a caller");
        let query = Query::parse(head.uri.query());
        let path = head.uri.path().to_owned();
        Ok(ParsedRequest { caller, peer, method: head.method, path, query, headers: head.headers, parts, body, place })
    }

    /// The document that the path names.
    pub(crate) fn address(&self) -> Address {
        let part = |name: &str| self.parts.get(name).cloned();
        let (username, id, manager) = (part("username"), part("id"), part("manager"));
        let is_consumer = username.is_some() && !self.path.contains("/credentials");
        let (id, parent) = if is_consumer { (username, None) } else { (id, username.or(manager)) };
        Address { id, parent, sub_path: part("path") }
    }

    /// The body as JSON; `None`: it is empty.
    pub(crate) fn json(&self) -> Result<Option<Json>, Answer> {
        parse(&self.body)
    }
}
