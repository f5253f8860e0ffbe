//! `GET /v1/fleet`: the nodes that serve the resources of one etcd, and whether they serve the same revision.
//!
//! Each node writes a report about itself into etcd, where APISIX's data planes write theirs
//! (`PREFIX/data_plane/server_info/ID`), every 20 seconds and when it serves another revision. A report is not a resource: it changes
//! nothing that is served. A node whose user may not write is missing in the list, and works.

use super::context::{PageContext, PageRefusal, Question, json, refuse};
use super::status::StatusPage;
use axum::response::Response;
use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use std::sync::Arc;
use std::time::Duration;
use stillgate_config::DigestedText;
use stillgate_datastore::etcd::{Etcd, EtcdError};
use stillgate_measures::process_stats::{hostname, now_unix_ms};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

/// How often a node reports at least.
const REPORT_EVERY: Duration = Duration::from_secs(20);

/// How often a node looks for a change of what it serves.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long the report of a node that is gone is kept, so that it can be seen that it is missing.
const REPORT_TTL_S: u64 = 3600;

/// A node that has not reported for this time is silent.
const SILENT_S: u64 = 60;

/// The time that a node may take to serve what others serve.
const BEHIND_S: u64 = 10;

/// Nodes that are listed.
const NODES_MAX: u64 = 1000;

/// Rejected resources in a report, and bytes of each reason.
const REJECTED_MAX: usize = 5;
const REASON_BYTES_MAX: usize = 300;

/// Characters of a node's id.
const ID_CHARS: usize = 16;

const ETCD_TIMEOUT: Duration = Duration::from_secs(5);

/// What a node says of itself. The names of the first five are APISIX's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct NodeReport {
    id: String,
    #[serde(default)]
    hostname: String,
    #[serde(default)]
    version: String,
    /// Seconds since 1970.
    #[serde(default)]
    boot_time: u64,
    #[serde(default)]
    last_report_time: u64,
    #[serde(default)]
    product: Option<String>,
    #[serde(flatten)]
    served: Option<ServedReport>,
}

/// What only Stillgate says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ServedReport {
    /// The last revision that changed a resource, of those that are served.
    revision: u64,
    /// Since when, in seconds since 1970.
    revision_since: u64,
    /// The newest revision of etcd up to which everything is served.
    seen: u64,
    generation: u64,
    rejected_total: usize,
    rejected: Vec<Json>,
}

/// The node in `GET /v1/fleet`.
#[derive(Debug, Serialize)]
struct ListedNode {
    id: String,
    hostname: String,
    version: String,
    product: &'static str,
    is_self: bool,
    state: &'static str,
    revision: Option<u64>,
    generation: Option<u64>,
    /// Since when others serve what it does not.
    behind_since_unix_s: Option<u64>,
    rejected_total: usize,
    rejected: Vec<Json>,
    started_unix_s: u64,
    reported_unix_s: u64,
}

/// Reports about this node as long as the process serves.
pub(crate) async fn report(api: PageContext) {
    let Some(etcd) = api.kept.as_ref().and_then(|kept| kept.keeper.etcd.get().cloned()) else { return };
    let mut last: Option<NodeReport> = None;
    let mut reported: Option<Instant> = None;
    let mut is_said = false;
    loop {
        let Some(status) = api.ask(Question::Status).await else { return };
        let Some(next) = NodeReport::new(&api, &status, last.as_ref()).await else { return };
        let is_due = reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY);
        if is_due
            || last.as_ref().and_then(|last| last.served.as_ref()).map(ServedReport::content)
                != next.served.as_ref().map(ServedReport::content)
        {
            let text = serde_json::to_string(&next).expect("a report has string keys only");
            let written = timeout(ETCD_TIMEOUT, etcd.report(&next.id, text, REPORT_TTL_S)).await;
            let is_written = matches!(written, Ok(Ok(())));
            match written {
                Ok(Ok(())) if is_said => info!("this node is listed in the fleet again"),
                Ok(Ok(())) => {}
                _ if is_said => {}
                Ok(Err(error)) => {
                    warn!(%error, "this node is missing in /v1/fleet: its report cannot be written to etcd")
                }
                Err(_) => warn!("this node is missing in /v1/fleet: etcd does not answer"),
            }
            is_said = !is_written;
            (last, reported) = (Some(next), Some(Instant::now()));
        }
        sleep(LOOK_EVERY).await;
    }
}

/// The answer to `GET /v1/fleet`.
pub(super) async fn fleet(api: PageContext) -> Response {
    let Some(status) = api.ask(Question::Status).await else { return refuse(&PageRefusal::Ending) };
    let Some(own) = NodeReport::new(&api, &status, None).await else { return refuse(&PageRefusal::Ending) };
    let etcd = api.kept.as_ref().and_then(|kept| kept.keeper.etcd.get().cloned());
    let (reports, error) = match etcd {
        Some(etcd) => match others(&etcd, &own).await {
            Ok(reports) => (reports, None),
            Err(why) => (Vec::new(), Some(why)),
        },
        None => (Vec::new(), None),
    };
    let newest = reports.iter().chain([&own]).filter_map(|report| report.served.as_ref()).max_by_key(|of| of.revision);
    let nodes = list(&reports, &own, now_unix_ms() / 1000);
    let revision = match api.kept.as_ref().map(|kept| kept.keeper.traits.is_embedded) {
        Some(false) => newest.map(|of| of.revision),
        _ => status.revision,
    };
    let answer = json!({ "source": status.source, "revision": revision, "error": error, "nodes": nodes });
    json(StatusCode::OK, &answer)
}

/// The reports of other nodes.
async fn others(etcd: &Arc<Etcd>, own: &NodeReport) -> Result<Vec<NodeReport>, String> {
    let read: Result<Vec<Vec<u8>>, EtcdError> =
        timeout(ETCD_TIMEOUT, etcd.reports(NODES_MAX)).await.map_err(|_| "etcd does not answer".to_owned())?;
    let reports = read.map_err(|error| error.to_string())?;
    // Anything else was written by another program.
    let reports = reports.iter().filter_map(|text| serde_json::from_slice::<NodeReport>(text).ok());
    Ok(reports.filter(|report| report.id != own.id).collect())
}

/// This node first, the others by name.
fn list(others: &[NodeReport], own: &NodeReport, now_s: u64) -> Vec<ListedNode> {
    let served = || others.iter().chain([own]).filter_map(|report| report.served.as_ref());
    let newest = served().map(|of| of.revision).max().unwrap_or(0);
    let newest_since = served().filter(|of| of.revision == newest).map(|of| of.revision_since).min().unwrap_or(now_s);
    let of = |report: &NodeReport, is_self: bool| {
        let served = report.served.as_ref();
        let is_stillgate = report.product.as_deref() == Some("stillgate");
        // Later revisions of etcd may change no resource.
        let has_newest = served.is_some_and(|of| of.seen >= newest);
        let is_behind = served.is_some() && !has_newest && now_s.saturating_sub(newest_since) > BEHIND_S;
        let state = match served {
            _ if now_s.saturating_sub(report.last_report_time) > SILENT_S => "silent",
            None => "unknown",
            Some(_) if is_behind => "behind",
            Some(_) => "ok",
        };
        ListedNode {
            id: report.id.clone(),
            hostname: report.hostname.clone(),
            version: report.version.clone(),
            product: if is_stillgate { "stillgate" } else { "apisix" },
            is_self,
            state,
            revision: served.map(|of| if has_newest { newest } else { of.revision }),
            generation: served.map(|of| of.generation),
            behind_since_unix_s: is_behind.then_some(newest_since),
            rejected_total: served.map_or(0, |of| of.rejected_total),
            rejected: served.map(|of| of.rejected.clone()).unwrap_or_default(),
            started_unix_s: report.boot_time,
            reported_unix_s: report.last_report_time,
        }
    };
    let mut nodes: Vec<ListedNode> = others.iter().map(|report| of(report, false)).collect();
    nodes.sort_by(|a, b| (&a.hostname, &a.id).cmp(&(&b.hostname, &b.id)));
    nodes.insert(0, of(own, true));
    nodes
}

impl NodeReport {
    /// `last`: the former report of this process. `None`: the gateway is shutting down.
    async fn new(api: &PageContext, status: &StatusPage, last: Option<&NodeReport>) -> Option<NodeReport> {
        let listeners = api.ask(Question::Served).await?.loaded.config.listeners.clone();
        let now_s = now_unix_ms() / 1000;
        let hostname = hostname();
        let served = api.kept.as_ref().map(|kept| {
            let (stored, served) = (kept.keeper.stored.borrow().clone(), *kept.keeper.served.borrow());
            let is_current = stored.revision.is_some_and(|revision| served.revision >= revision);
            let revision = if is_current { stored.changed } else { stored.changed.min(served.revision) };
            let former = last.and_then(|last| last.served.as_ref()).filter(|former| former.revision == revision);
            ServedReport {
                revision,
                revision_since: former.map_or(now_s, |former| former.revision_since),
                seen: if is_current { stored.newest.max(served.revision) } else { served.revision },
                generation: status.config.generation,
                rejected_total: status.rejected.len(),
                rejected: status.rejected.iter().take(REJECTED_MAX).map(|of| of.summary(REASON_BYTES_MAX)).collect(),
            }
        });
        let place = format!("{hostname}\n{:?}\n{listeners:?}", api.source.name());
        Some(NodeReport {
            id: node_id(place),
            hostname,
            version: status.version.to_owned(),
            boot_time: now_s.saturating_sub(status.uptime_seconds),
            last_report_time: now_s,
            product: Some("stillgate".to_owned()),
            served,
        })
    }
}

impl ServedReport {
    /// What others should learn at once.
    fn content(&self) -> (u64, u64, usize) {
        (self.revision, self.generation, self.rejected_total)
    }
}

/// Equal for every start of a gateway with this configuration file and these listeners on this machine, so that a restart is not a
/// further node.
fn node_id(place: String) -> String {
    let digest = DigestedText::new(place.into_bytes());
    digest.digest().chars().take(ID_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str, revision: u64, seen: u64, since: u64) -> NodeReport {
        NodeReport {
            id: id.to_owned(),
            hostname: id.to_owned(),
            version: "0.1.0".to_owned(),
            boot_time: 1,
            last_report_time: 1000,
            product: Some("stillgate".to_owned()),
            served: Some(ServedReport {
                revision,
                revision_since: since,
                seen,
                generation: 3,
                rejected_total: 0,
                rejected: Vec::new(),
            }),
        }
    }

    fn states(others: &[NodeReport], own: &NodeReport, now_s: u64) -> Vec<(String, &'static str, Option<u64>)> {
        list(others, own, now_s).into_iter().map(|node| (node.id, node.state, node.revision)).collect()
    }

    #[test]
    fn a_node_is_behind_when_it_has_not_seen_what_others_serve() {
        let own = node("a", 42, 50, 900);
        // It began after the last change of a resource was deleted: it knows of no resource that is so new, and has seen it.
        let later = node("b", 40, 48, 950);
        let behind = node("c", 40, 41, 500);
        let found = states(&[behind.clone(), later], &own, 1005);
        let expected = [("a", "ok", Some(42)), ("b", "ok", Some(42)), ("c", "behind", Some(40))];
        assert_eq!(found, expected.map(|(id, state, revision)| (id.to_owned(), state, revision)));
        let listed = list(std::slice::from_ref(&behind), &own, 1005);
        assert_eq!(listed[1].behind_since_unix_s, Some(900));
        // A change takes a moment.
        assert_eq!(states(&[behind], &node("a", 42, 50, 1000), 1005)[1].1, "ok");
    }

    #[test]
    fn a_silent_node_and_one_of_apisix_are_listed() {
        let text = r#"{"id":"x","hostname":"h","version":"3.18.0","boot_time":5,"last_report_time":1000,"etcd_version":"3.5"}"#;
        let apisix: NodeReport = serde_json::from_str(text).unwrap();
        let own = NodeReport { last_report_time: 1061, ..node("a", 42, 50, 900) };
        let listed = list(&[apisix, node("gone", 42, 42, 900)], &own, 1061);
        let found: Vec<_> = listed.iter().map(|node| (&*node.id, node.state, node.product)).collect();
        assert_eq!(found, [("a", "ok", "stillgate"), ("gone", "silent", "stillgate"), ("x", "silent", "apisix")]);
        assert_eq!(listed[2].revision, None);
    }
}
