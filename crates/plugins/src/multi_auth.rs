//! multi-auth: authenticates by any of several plugins.
//!
//! A request that one plugin refuses is passed to the next. The refusals are dropped if a later plugin accepts: the
//! response then has no challenge, unlike in APISIX. An answer that does not concern the credentials (the threads that
//! compare passwords are busy) takes precedence over 401.
//!
//! Once a plugin knows the request, all plugins with `hide_credentials` take theirs out of it. In APISIX only that plugin does, so
//! that a client which sends several kinds of credentials gives the others to the node.

use serde_json::json;
use std::sync::Arc;
use stillgate_plugin_api::flow::{Offload, Resume, WholeBody};
use stillgate_plugin_api::{Answer, Compile, Define, Flow, Phase, Phases, Plugin, Request};
use stillgate_schema::{Definitions, Fault, Json, Kind, Node, Path, Sink, Value, object, report_expected};
use stillgate_wire::Edits;

object! {
    /// Authenticates by one of several kinds of credentials.
    pub struct MultiAuthKeys {
        /// At least two plugins that authenticate, each with its configuration: `- key-auth: {header: X-Key}`. They are
        /// tried in this order.
        auth_plugins: Vec<Node> = AuthPlugins => required;
    }
}

/// A list of maps of plugins.
struct AuthPlugins;

impl Kind for AuthPlugins {
    type Out = Vec<Node>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Vec<Node>> {
        match &node.value {
            Value::List(items) if items.len() >= 2 => Some(items.to_vec()),
            Value::List(_) => {
                let fault = Fault::new("one of several needs at least two plugins");
                sink.error(node.at, path, fault.hint("add one, or use the plugin by itself"));
                None
            }
            _ => {
                report_expected("a list such as [{key-auth: {}}, {basic-auth: {}}]", node, path, sink);
                None
            }
        }
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        let mut plugins = serde_json::Map::new();
        for plugin in crate::TABLE.plugins.iter().filter(|plugin| plugin.credential.is_some()) {
            plugins.insert(plugin.name.to_owned(), (plugin.schema)(definitions));
        }
        let item = json!({"type": "object", "properties": plugins, "additionalProperties": false});
        json!({"type": "array", "minItems": 2, "items": item})
    }
}

/// multi-auth with one configuration.
pub(crate) struct MultiAuth {
    plugins: Arc<[Box<dyn Plugin>]>,
    names: Box<[&'static str]>,
}

impl Define for MultiAuth {
    type Keys = MultiAuthKeys;
    const NAME: &'static str = "multi-auth";
    const PRIORITY: i32 = 2600;
    const PHASES: Phases = Phases::of(&[Phase::Rewrite]);

    fn compile(keys: MultiAuthKeys, cx: &mut Compile<'_>) -> Option<MultiAuth> {
        let (mut plugins, mut names, mut is_whole) = (Vec::new(), Vec::new(), true);
        let list = cx.path.key("auth_plugins");
        for (index, item) in keys.auth_plugins.iter().enumerate() {
            let path = list.index(index);
            let Value::Map(entries) = &item.value else {
                report_expected("a map such as {key-auth: {}}", item, &path, cx.sink);
                is_whole = false;
                continue;
            };
            for entry in entries.iter() {
                let path = path.key(&entry.key);
                let found = crate::TABLE.find(&entry.key).filter(|(_, plugin)| plugin.credential.is_some());
                let Some((_, plugin)) = found else {
                    let known = crate::TABLE.plugins.iter().filter(|plugin| plugin.credential.is_some());
                    let known: Vec<&str> = known.map(|plugin| plugin.name).collect();
                    let fault = Fault::new(format!("{:?} is not a plugin that authenticates by itself", &*entry.key));
                    cx.sink.error(entry.key_at, &path, fault.hint(format!("use one of {}", known.join(", "))));
                    is_whole = false;
                    continue;
                };
                let Compile { origin, identity, upstreams, .. } = *cx;
                let (sink, at) = (&mut *cx.sink, entry.value.at);
                let mut cx = Compile { sink, path: &path, at, origin, identity, upstreams };
                match plugin.compile(&entry.value, &mut cx) {
                    Some(compiled) => plugins.push(compiled),
                    None => is_whole = false,
                }
                names.push(plugin.name);
            }
        }
        is_whole.then(|| MultiAuth { plugins: plugins.into(), names: names.into() })
    }
}

const FAILED: &str = "{\"message\":\"Authorization Failed\"}\n";

impl Plugin for MultiAuth {
    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        ask(self.plugins.clone(), 0, None, request)
    }

    fn each_field_read(&self, visit: &mut dyn FnMut(&str, &[u8])) {
        self.plugins.iter().for_each(|plugin| plugin.each_field_read(&mut |_, name| visit("auth_plugins", name)));
    }

    fn named_consumer(&self) -> Option<&str> {
        self.plugins.iter().find_map(|plugin| plugin.named_consumer())
    }

    fn asks_for(&self) -> &[&'static str] {
        &self.names
    }
}

/// An answer that does not concern the credentials, with its header fields.
type OtherAnswer = Option<(Answer, Edits)>;

/// Tries a plugin and those after it.
fn ask(plugins: Arc<[Box<dyn Plugin>]>, at: usize, other: OtherAnswer, request: &mut Request<'_>) -> Flow {
    match plugins.get(at) {
        Some(plugin) => {
            let before = request.response.clone();
            let flow = plugin.rewrite(request);
            go_on(MultiAuthAttempt { plugins, at, other, before }, flow, request)
        }
        None => Flow::Answer(match other {
            Some((answer, fields)) => {
                *request.response = fields;
                answer
            }
            None => Answer::text(401, FAILED),
        }),
    }
}

/// State of the attempts.
struct MultiAuthAttempt {
    plugins: Arc<[Box<dyn Plugin>]>,
    at: usize,
    /// The first such answer.
    other: OtherAnswer,
    /// Fields of the response before the plugin ran. Fields that it sets are for its own answer, not for one of a later
    /// plugin.
    before: Edits,
}

/// Continues with a plugin's result.
fn go_on(asked: MultiAuthAttempt, flow: Flow, request: &mut Request<'_>) -> Flow {
    match flow {
        Flow::Continue => {
            // The node gets none of the credentials that are to be hidden, whichever were used.
            asked.plugins.iter().for_each(|plugin| plugin.hide_credentials(request));
            Flow::Continue
        }
        Flow::Answer(answer) => {
            let MultiAuthAttempt { plugins, at, mut other, before } = asked;
            if other.is_none() && answer.status != 401 {
                other = Some((answer, request.response.clone()));
            }
            // The answer has the last challenge, as in APISIX.
            if at + 1 < plugins.len() {
                *request.response = before;
            }
            ask(plugins, at + 1, other, request)
        }
        Flow::Wait(future) => Flow::Wait(Box::pin(async move {
            let then = future.await;
            Box::new(move |request: &mut Request<'_>| {
                let flow = then(request);
                go_on(asked, flow, request)
            }) as Resume
        })),
        Flow::Offload(Offload { work, then }) => Flow::Offload(Offload {
            work,
            then: Box::new(move |output, request| {
                let flow = then(output, request);
                go_on(asked, flow, request)
            }),
        }),
        Flow::Body(WholeBody { bytes_max, too_large, then }) => Flow::Body(WholeBody {
            too_large,
            bytes_max,
            then: Box::new(move |request| {
                let flow = then(request);
                go_on(asked, flow, request)
            }),
        }),
    }
}
