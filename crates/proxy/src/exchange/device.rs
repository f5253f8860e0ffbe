//! From a request to the connection of a device: whether there is room for it, its 101, and which parts of the exchange are kept.

use super::answer::LocalReply;
use super::chain::{self, ResponseSource};
use super::upgraded_exchange::UpgradedRequest;
use super::{ConnectionNext, RequestContext, Switch};
use crate::basics::buffer::Buffer;
use crate::basics::clock::Timer;
use crate::device_link::{Admission, DeviceFacts};
use crate::plan::Lease;
use crate::telemetry::outcome::RetainedConfig;
use crate::worker::devices::{DeviceRefusal, DeviceRegistration};
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use stillgate_devices::Generation;
use stillgate_devices::protocol::DeviceProtocol;
use stillgate_devices::session::SessionId;
use stillgate_plugin_api::{Device, DeviceSettings};

/// How long a device waits for admission.
const ADMISSION_MS: u64 = 5_000;
/// Seconds after which a device that found no room may try again, and how many more at random.
const FULL_RETRY_S: u64 = 10;
const FULL_RETRY_SPREAD_S: u64 = 20;

/// The beginning of a device's connection, without the socket.
pub(crate) struct BegunDevice {
    pub(crate) place: DeviceRegistration,
    pub(crate) device: Arc<str>,
    pub(crate) labels: Box<[(Box<str>, Box<str>)]>,
    pub(crate) protocol: DeviceProtocol,
    pub(crate) settings: Arc<DeviceSettings>,
    pub(crate) generation: Generation,
    pub(crate) session: SessionId,
    pub(crate) request: Box<UpgradedRequest>,
    pub(crate) admission: Option<DeviceAdmission>,
    /// `None`: the route does not care what becomes of its devices.
    pub(crate) lease: Option<Arc<Lease>>,
    /// Bytes that arrived after the request, and how many arrived in total.
    pub(crate) buffered: Option<(Buffer, Range<usize>)>,
    pub(crate) received: u64,
    pub(crate) sent: u64,
}

/// What a device was admitted with.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DeviceAdmission {
    /// Name of the consumer.
    pub(crate) consumer: Box<str>,
    /// Id of its credential; `None`: the credential is part of the consumer itself.
    pub(crate) credential: Option<Box<str>>,
    /// Fingerprint of the credential that the device was admitted with.
    pub(crate) credential_fingerprint: u64,
    /// When it ends, in milliseconds since 1970.
    pub(crate) until_ms: Option<u64>,
}

/// Turns the request into the connection of a device; an error is the answer to the request.
pub(super) async fn begin(serving: &mut RequestContext<'_>, device: &Device) -> Result<ConnectionNext, LocalReply> {
    let worker = serving.worker.clone();
    let Some(devices) = &worker.devices else {
        return Err(LocalReply::error(503, "no devices are served: gateway.devices is not configured"));
    };
    let Some(route) = serving.route else { return Err(LocalReply::no_route()) };
    if !serving.exchange.from_client.is_done() || !serving.exchange.to_client.is_idle() {
        return Err(LocalReply::closing(400, "a handshake of WebSocket has no body"));
    }
    if worker.parts_with(serving.client) {
        return Err(LocalReply::later("this process is about to end", 1));
    }
    let now_ms = worker.clock.now_ms();
    devices.check_may_begin(&device.settings, now_ms, worker.random()).map_err(|turned| match turned {
        DeviceRefusal::TooFast { after_s } => LocalReply::later("too many devices connect at once", after_s),
        DeviceRefusal::Busy => LocalReply::later("too many devices wait to be let in", 1 + worker.random() % 10),
    })?;
    let mut place = DeviceRegistration::new(&worker, devices);
    let name: Arc<str> = Arc::from(&*device.id);
    let facts = DeviceFacts {
        device: name.clone(),
        labels: device.labels.clone(),
        protocol: device.protocol,
        peer: serving.client.peer,
        route: devices.route(&route.route.spec.id),
        settings: device.settings.clone(),
    };
    let (generation, session) = request_admission(serving, &mut place, facts).await?;
    answer(serving, device).await?;
    let after = ConnectionNext::Tunnel;
    let admission = admission_of(serving);
    let request = Box::new(upgraded_request(serving));
    let exchange = &mut *serving.exchange;
    exchange.upgraded = Some(Switch::Device(Box::new(BegunDevice {
        place,
        device: name,
        labels: device.labels.clone(),
        protocol: device.protocol,
        settings: device.settings.clone(),
        generation,
        session,
        request,
        admission,
        lease: route.lease.clone(),
        received: exchange.from_client.total,
        sent: exchange.bytes_sent(),
        buffered: exchange.from_client.take_leftover(),
    })));
    Ok(after)
}

/// Requests admission for the device.
async fn request_admission(
    serving: &RequestContext<'_>,
    place: &mut DeviceRegistration,
    facts: DeviceFacts,
) -> Result<(Generation, SessionId), LocalReply> {
    let worker = serving.worker;
    let mut arriving = place.ask(facts, None);
    let timer = Timer::new();
    let deadline_ms = worker.clock.now_ms() + ADMISSION_MS;
    let answer = worker.clock.within(&timer, deadline_ms, pin!(arriving.answer())).await;
    let retry_s = || FULL_RETRY_S + worker.random() % FULL_RETRY_SPREAD_S;
    match answer.flatten() {
        Some(Admission::Admitted { generation, session }) => Ok((generation, session)),
        Some(Admission::Occupied) => Err(LocalReply::error(409, "the device is connected already")),
        Some(Admission::Full) => Err(LocalReply::later("as many devices are connected as may be", retry_s())),
        None => Err(LocalReply::later("devices cannot be let in now", retry_s())),
    }
}

/// Writes the 101.
async fn answer(serving: &mut RequestContext<'_>, device: &Device) -> Result<(), LocalReply> {
    let RequestContext { worker, exchange, .. } = serving;
    exchange.outcome.status = 101;
    exchange.from_node.release(&worker.buffers);
    exchange.response_edits.clear();
    chain::header_filter(serving, ResponseSource::Us(101, 0)).map_err(|_| LocalReply::error(500, "a plugin failed"))?;
    let RequestContext { worker, client, exchange, snapshot, .. } = serving;
    // What follows is not a body, and only a 101 says so.
    exchange.response_body.clear();
    let before = exchange.bytes_sent();
    let edits = &exchange.response_edits.fields;
    let out = exchange.to_client.head(&worker.buffers);
    out.extend_from_slice(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n");
    out.extend_from_slice(b"Sec-WebSocket-Accept: ");
    out.extend_from_slice(&device.accept);
    out.extend_from_slice(b"\r\n");
    if let Some(subprotocol) = &device.subprotocol {
        for part in [b"Sec-WebSocket-Protocol: ", subprotocol.as_bytes(), b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    out.extend_from_slice(edits.lines());
    out.extend_from_slice(b"\r\n");
    exchange.outcome.head_bytes = before + out.len() as u64;
    exchange.fields.note_answer(worker.wanted_fields(), out);
    exchange.to_client.stage(&[], None, &worker.buffers);
    let deadline_ms = worker.clock.now_ms() + snapshot.plan.settings.send_ms;
    let is_out = poll_fn(|cx| match exchange.to_client.poll_flush(cx, &mut client.stream, &[], &worker.buffers) {
        Poll::Ready(result) => Poll::Ready(result.is_ok()),
        Poll::Pending if worker.clock.now_ms() >= deadline_ms => Poll::Ready(false),
        Poll::Pending => {
            client.timer.set(&worker.clock, deadline_ms, cx);
            Poll::Pending
        }
    });
    match is_out.await {
        true => Ok(()),
        // The client is gone: no answer would be read.
        false => Err(LocalReply::closing(400, "the client is gone")),
    }
}

/// What the device was admitted with; `None`: it was not authenticated.
fn admission_of(serving: &RequestContext<'_>) -> Option<DeviceAdmission> {
    let chains = &serving.exchange.chains;
    let attached = chains.consumer?;
    let consumers = &serving.snapshot.plan.consumers;
    let consumer = consumers.of(attached);
    let credential = attached.credential.and_then(|place| consumer.credentials.get(usize::from(place)));
    Some(DeviceAdmission {
        consumer: consumer.name.clone(),
        credential: credential.cloned(),
        credential_fingerprint: consumers.credential_fingerprint(attached)?,
        until_ms: chains.settled.authenticated_until.get().map(|seconds| (seconds * 1000.0) as u64),
    })
}

/// What the access log and the metrics will report at the end.
fn upgraded_request(serving: &mut RequestContext<'_>) -> UpgradedRequest {
    let chains = chain::keep_for_tunnel(serving);
    let RequestContext { exchange, route, .. } = serving;
    let mut outcome = std::mem::take(&mut exchange.outcome);
    outcome.kept = route.map(|route| {
        let path = outcome.route.map_or(0, |found| found.path);
        Rc::new(RetainedConfig { route: route.route.clone(), path, upstream: None })
    });
    UpgradedRequest {
        head: exchange.from_client.head().into(),
        outcome,
        tries: exchange.tries.clone(),
        fields: exchange.fields.clone(),
        chains,
    }
}
