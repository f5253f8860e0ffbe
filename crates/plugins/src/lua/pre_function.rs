//! `_meta.pre_function`: a function in Lua that runs before each phase of a plugin.
//!
//! As in APISIX, a failure is logged and the plugin runs; here it is counted, too, and if the function had to be
//! stopped the request is answered with 500. It may answer, and wait if its plugin may. It is not called for each piece
//! of a body, and `conf` is the written configuration, without the plugin's defaults.

use super::functions::{Functions, before_the_node};
use super::request_copy::Wishes;
use serde_json::Value as Json;
use std::sync::Arc;
use stillgate_lua::{CallKind, Program, check};
use stillgate_plugin_api::metadata::MetadataTable;
use stillgate_plugin_api::{Identity, OwnUpstream, Phase, Phases, Plugin, PluginOrigin, Request, Response};
use stillgate_route::Variable;

/// A plugin with a function before it.
struct PrecededPlugin {
    functions: Arc<Functions>,
    inner: Arc<dyn Plugin>,
}

/// Wraps a plugin in a function: [`stillgate_plugin_api::table::Scripts::precede`].
pub(crate) fn precede(
    source: &str,
    plugin: Box<dyn Plugin>,
    name: &'static str,
    conf: Json,
    origin: &PluginOrigin,
) -> Result<Box<dyn Plugin>, String> {
    check(source)?;
    let inner: Arc<dyn Plugin> = plugin.into();
    let program =
        Program::new(format!("{origin}, pre_function of {name}"), vec![source.to_owned()], conf, CallKind::Condition);
    let wants_documents = source.contains("matched_route") || inner.wants_documents();
    let (wishes, then) = (Arc::new(Wishes::of(&[])), Some(inner.clone()));
    let functions = Functions { plugin: name, program, wants_documents, has_parts: false, wishes, then };
    Ok(Box::new(PrecededPlugin { functions: Arc::new(functions), inner }))
}

impl Plugin for PrecededPlugin {
    before_the_node!(self => self.functions);

    fn header_filter(&self, response: &mut Response<'_>) {
        if self.functions.run_behind(Phase::HeaderFilter, response) {
            self.inner.header_filter(response);
        }
    }

    fn codes_content(&self) -> bool {
        self.inner.codes_content()
    }

    fn code_content(&self, response: &mut Response<'_>) {
        // They have also run before a plugin that has `header_filter`.
        let has_run = self.inner.phases().contains(Phase::HeaderFilter);
        if has_run || self.functions.run_behind(Phase::HeaderFilter, response) {
            self.inner.code_content(response);
        }
    }

    fn filters_responses(&self) -> bool {
        self.inner.filters_responses()
    }

    fn log(&self, response: &mut Response<'_>) {
        self.functions.run_behind(Phase::Log, response);
        self.inner.log(response);
    }

    fn phases(&self) -> Phases {
        self.inner.phases()
    }

    fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
        self.inner.each_variable(visit);
    }

    fn arguments_bytes_max(&self) -> usize {
        self.inner.arguments_bytes_max()
    }

    fn reads_consumer(&self) -> bool {
        self.inner.reads_consumer()
    }

    fn wants_documents(&self) -> bool {
        self.functions.wants_documents
    }

    fn lacks(&self, metadata: &MetadataTable) -> Option<&'static str> {
        self.inner.lacks(metadata)
    }

    fn prefers_names(&self) -> bool {
        self.inner.prefers_names()
    }

    fn asks_for(&self) -> &[&'static str] {
        self.inner.asks_for()
    }

    fn hide_credentials(&self, request: &mut Request<'_>) {
        self.inner.hide_credentials(request);
    }

    fn shared(&self) -> Option<(&str, Identity)> {
        self.inner.shared()
    }

    fn named_consumer(&self) -> Option<&str> {
        self.inner.named_consumer()
    }

    fn own_upstreams(&self) -> &[OwnUpstream] {
        self.inner.own_upstreams()
    }

    fn needs_limits(&self) -> bool {
        self.inner.needs_limits()
    }
}
