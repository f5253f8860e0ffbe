//! `public-api` serves reports of other plugins, such as `node-status`, on custom routes.
//!
//! Metrics are not made here, but by the exporter's thread: encoding them would delay the requests of this worker.

use serde_json::json;
use std::sync::OnceLock;
use stillgate_plugin_api::{Answer, Compile, Define, Flow, Phase, Phases, Plugin, Request};
use stillgate_schema::{TEXT, object};

object! {
    /// Serves reports of other plugins.
    pub(crate) struct PublicApiKeys {
        /// The report to serve; the path of the request if the key is absent.
        uri: String = TEXT.shown() => optional;
    }
}

/// APISIX's path of node-status.
const STATUS: &str = "/apisix/status";
/// APISIX's path of metrics.
const METRICS: &str = "/apisix/prometheus/metrics";

/// `public-api`
pub(crate) struct PublicApi {
    uri: Option<Box<str>>,
}

impl Define for PublicApi {
    type Keys = PublicApiKeys;
    const NAME: &'static str = "public-api";
    const PRIORITY: i32 = 501;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: PublicApiKeys, _: &mut Compile<'_>) -> Option<PublicApi> {
        Some(PublicApi { uri: keys.uri.map(String::into) })
    }
}

impl Plugin for PublicApi {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        let of_request = request.facts.path.map_or(&b"/"[..], |path| path.bytes());
        let asked = self.uri.as_deref().map_or(of_request, str::as_bytes);
        let is_get = request.facts.method() == b"GET";
        if is_get && asked == METRICS.as_bytes() {
            return Flow::Answer(Answer::metrics());
        }
        // As in APISIX, an unknown report is answered with 404.
        if !is_get || asked != STATUS.as_bytes() {
            return Flow::Answer(Answer::page(404));
        }
        let counts = request.worker.counts();
        let text = |count: u64| count.to_string();
        // Counted like nginx: every accepted connection is handled, and one without a request is waiting.
        let status = json!({
            "id": id(),
            "status": {
                "active": text(counts.connections_open),
                "accepted": text(counts.connections_total),
                "handled": text(counts.connections_total),
                "total": text(counts.requests_total),
                "reading": "0",
                "writing": text(counts.requests_in_flight),
                "waiting": text(counts.connections_open.saturating_sub(counts.requests_in_flight)),
            },
        });
        Flow::Answer(Answer::json(200, &status.to_string()))
    }
}

/// The id of this process: a random UUID.
fn id() -> &'static str {
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(crate::request_id::random_uuid)
}
