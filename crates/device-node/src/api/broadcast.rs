//! `POST /v1/broadcast` and `GET /v1/broadcast/{job}`

use super::super::envelope::join;
use super::super::jobs::{JOBS_MAX, JobKnowledge, JobProgress, NoJob, read_broadcast};
use super::super::node::DeviceNode;
use super::super::peers::{BROADCAST, JOB, PATIENCE};
use super::answer::{error, json, later, of_verdict, unknown};
use super::messages::read;
use crate::envelope::PostVerdict;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONNECTION, LOCATION};
use axum::http::{HeaderValue, StatusCode, Version};
use axum::response::Response;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rand::random;
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use stillgate_devices::protocol::MessageId;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The fields of the request besides its message.
const WORDS_BYTES_MAX: usize = 16 * 1024;

/// How long to wait for the state of a job that another process of this node may have.
const JOB_WAIT: Duration = Duration::from_secs(5);

/// Time for other nodes to begin: one whose process is being replaced waits until it is known which of the two goes on.
const BEGIN_PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn begin(node: &Arc<DeviceNode>, request: Request) -> Response {
    let (message, bytes_max) = (MessageId(random()), node.limits.message_bytes);
    // A message takes more in base64.
    let (head, body) = request.into_parts();
    let bytes = match read(body, bytes_max.saturating_mul(2) + WORDS_BYTES_MAX).await {
        Ok(bytes) => bytes,
        Err(why) => return why.answer(message, bytes_max),
    };
    // If two processes serve side by side, only the one that goes on reaches all devices.
    node.wait_until_decided().await;
    if node.has_left()
        && let Ok(answer) = pass_on(node, Request::from_parts(head, bytes.clone().into())).await
    {
        return answer;
    }
    let begun = read_broadcast(&bytes, bytes_max).and_then(|(of, body)| node.broadcast(message, of, &body, None));
    match begun {
        Ok(()) => {}
        Err(NoJob::TooLong) => return of_verdict(message, PostVerdict::TooLong { bytes_max }),
        Err(NoJob::Asked(why)) => return error(StatusCode::BAD_REQUEST, &why),
        Err(NoJob::Body(why)) => return error(StatusCode::BAD_REQUEST, &format!("\"body\": {why}")),
        Err(NoJob::TooMany) => return later(StatusCode::TOO_MANY_REQUESTS, "too many jobs are sending", 1),
        Err(NoJob::Leaving) => {
            let why = "an upgrade has replaced this process; ask again on another connection";
            return later(StatusCode::SERVICE_UNAVAILABLE, why, 1);
        }
    }
    if let Some(shared) = node.registry.shared() {
        let answers = shared.ask_all(BROADCAST, join(&message.to_string(), &bytes).into(), BEGIN_PATIENCE).await;
        node.state().jobs.set_other_nodes(message, answers.iter().map(|(node, _)| node.to_string()).collect());
    }
    let mut response = json(StatusCode::ACCEPTED, &json!({"id": message.to_string(), "state": "running"}));
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/broadcast/{message}")) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

/// Adds up the counts of a job on all nodes. Any of them can be asked, also one that did not exist when it began.
pub(super) async fn show(node: &DeviceNode, job: &str, request: Request) -> Response {
    let message = MessageId::parse(job);
    let here = match message {
        Some(message) => node.job(message, JOB_WAIT).await,
        None => None,
    };
    if node.has_left()
        && let Ok(answer) = pass_on(node, request).await
    {
        return answer;
    }
    let answers = match (message, node.registry.shared()) {
        (None, _) => None,
        (Some(message), None) => Some((message, Vec::new())),
        (Some(message), Some(shared)) => {
            Some((message, shared.ask_all(JOB, message.to_string().into(), PATIENCE).await))
        }
    };
    let shown = answers.and_then(|(message, answers)| {
        let known = |answer: Option<_>| answer.and_then(|answer: bytes::Bytes| serde_json::from_slice(&answer).ok());
        let here = (Arc::from(node.name.as_str()), here);
        add_up(message, answers.into_iter().map(|(node, answer)| (node, known(answer))).chain([here]))
    });
    match shown {
        Some(shown) => json(StatusCode::OK, &shown),
        None => error(
            StatusCode::NOT_FOUND,
            &format!("no node knows this job; each keeps its last {JOBS_MAX}, and forgets them when it is replaced"),
        ),
    }
}

/// `None`: no node knows it.
fn add_up(message: MessageId, nodes: impl Iterator<Item = (Arc<str>, Option<JobKnowledge>)>) -> Option<Json> {
    let (mut counts, mut part, mut told) = (JobProgress::default(), BTreeSet::new(), BTreeSet::new());
    for (name, known) in nodes {
        let Some(known) = known else { continue };
        counts.add(&known.counts);
        part.extend(known.nodes);
        told.insert(name.to_string());
    }
    let missing: Vec<&String> = part.difference(&told).collect();
    let mut shown = (!told.is_empty()).then(|| counts.shown(message))?;
    if !missing.is_empty() {
        shown["missing"] = missing.into_iter().cloned().collect();
    }
    Some(shown)
}

// Forwards requests that arrive after another process has taken over.
//
// A back-end may be sending on a kept connection while its gateway is replaced. Closing the connection would lose the request, and
// the back-end could not know whether it was carried out. So the request goes to the new process, and its answer comes back with
// `Connection: close`. Over TLS nothing is forwarded: a request for a device that has moved is answered 503, to be repeated.

/// The other process is on this machine, so it accepts at once or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The other process's answer. An error gives the request back: it could not be sent.
pub(super) async fn pass_on(node: &DeviceNode, request: Request) -> Result<Response, Box<Request>> {
    let Some(mut sender) = connect_to_successor(node).await else { return Err(Box::new(request)) };
    let (mut head, body) = request.into_parts();
    head.version = Version::HTTP_11;
    head.headers.remove(CONNECTION);
    match sender.send_request(Request::from_parts(head, body)).await {
        Ok(response) => {
            let (mut head, body) = response.into_parts();
            head.headers.remove(CONNECTION);
            Ok(Response::from_parts(head, Body::new(body)))
        }
        Err(_) => Ok(unknown("the process that has taken over did not answer")),
    }
}

async fn connect_to_successor(node: &DeviceNode) -> Option<SendRequest<Body>> {
    let address = *node.successor_api.get().filter(|_| node.has_left())?;
    let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await.ok()?.ok()?;
    stream.set_nodelay(true).ok()?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.ok()?;
    // The task ends with the body of the answer.
    tokio::spawn(async move { drop(connection.await) });
    Some(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(matched: u64, nodes: &[&str]) -> Option<JobKnowledge> {
        let counts = serde_json::from_value(json!({
            "is_sending": false, "matched": matched, "written": matched, "full": 0, "gone": 0, "late": 0
        }));
        Some(JobKnowledge { counts: counts.unwrap(), nodes: nodes.iter().map(|name| (*name).to_owned()).collect() })
    }

    fn check(nodes: Vec<(&str, Option<JobKnowledge>)>, want: Option<Json>) {
        let nodes = nodes.into_iter().map(|(name, known)| (Arc::from(name), known));
        let shown = add_up(MessageId(7), nodes);
        let facts = shown.map(|it| json!({"matched": it["matched"], "state": it["state"], "missing": it["missing"]}));
        assert_eq!(facts, want);
    }

    #[test]
    fn a_job_is_the_sum_of_its_nodes_parts() {
        let sum = |matched, missing: Json| Some(json!({"matched": matched, "state": "done", "missing": missing}));
        // `c` joined after the job had begun, and has no part in it.
        check(vec![("a", known(2, &["b"])), ("b", known(3, &["a"])), ("c", None)], sum(5, Json::Null));
        // The node where it began was replaced since: the others know that it took part.
        check(vec![("a", None), ("b", known(3, &["a"]))], sum(3, json!(["a"])));
        check(vec![("a", known(2, &["b"]))], sum(2, json!(["b"])));
        check(vec![("a", None), ("b", None)], None);
    }
}
