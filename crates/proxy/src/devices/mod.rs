//! Connections of devices that are terminated here: WebSocket frames, messages and their acknowledgements, pings, events.
//!
//! ```text
//!   exchange ── 101 is out ──▶ BegunDevice ──▶ Connection ── close, silence, a newer connection, the worker's end ──▶ one record
//!                                               ▲      │
//!                              mailbox: Command ┘      └▶ Report, events to the upstream
//! ```
//!
//! A connection is a task of its own, and small: while nothing moves it has no buffer, and its timer is in its worker's wheel. The
//! protocol is in the crate `devices`; here are the socket, the clock and the notifications. The thread of devices knows how the
//! device relates to others, and who waits for it ([`crate::device_link`]).

mod connection;
mod events;
mod input;
mod output;

use crate::connection::client::ClientConnection;
use crate::device_link::{DeviceFacts, FormerConnection};
use crate::exchange::{DeviceAdmission, Switch, UpgradedRequest};
use crate::handover::{
    CredentialState, DEVICE_MESSAGES_BYTES_MAX, DEVICE_MESSAGES_MAX, DeviceState, HandedState, MessageState, Parcel,
    ParcelError, ProtocolState, ROUTES, RequestState, share,
};
use crate::plan::{Lease, PlanRoute};
use crate::telemetry::access_log::ResponseFields;
use crate::telemetry::outcome::{RequestOutcome, RetainedConfig};
use crate::tunnel::Tunnel;
use crate::worker::devices::DeviceRegistration;
use crate::worker::{Open, Worker};
use connection::{DeviceConnection, ResumedDevice};
use events::Events;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stillgate_config::OnChange;
use stillgate_devices::Generation;
use stillgate_devices::protocol::{DeviceProtocol, EncodedBody, MessageId};
use stillgate_devices::session::{OutgoingMessage, Session, SessionId, SessionTransfer};
use stillgate_plugin_api::record::NodeTries;
use stillgate_plugin_api::{ConsumerRef, Consumers};
use stillgate_route::Match;
use tokio::task::spawn_local;

/// Continues a connection that a request has turned into something else, as a task of its own.
pub(crate) fn go_on(open: Open, client: ClientConnection, switch: Switch) {
    match switch {
        Switch::Tunnel(upgraded) => drop(spawn_local(Tunnel::new(open, client, (*upgraded).into()))),
        Switch::Device(begun) => drop(spawn_local(DeviceConnection::new(open, client, *begun))),
    }
}

// A device's connection moves to another process, and continues there as if nothing had happened.
//
// A connection is handed over while nothing is on its way: no frame is half read or half written, no event waits for the upstream,
// and no sender waits for the outcome of a message, which could not be reported from the other process. A device that is never
// quiet is requested to reconnect. None goes while a broadcast runs: it would miss those that went before its turn.

impl DeviceConnection {
    /// Gives it away if possible. True: it belongs to the other process, and ours is to be dropped.
    fn give(&mut self) -> bool {
        let worker = self.worker().clone();
        let Some(giving) = worker.handover() else { return false };
        if !self.may_ever_go() || self.is_held() || !self.is_quiet() {
            return false;
        }
        let is_given = giving.send(&worker.troubles, || self.pack());
        if is_given {
            self.on_taken_over();
        }
        is_given
    }

    /// Whether the other process has its listener and its route.
    fn may_ever_go(&self) -> bool {
        let worker = self.worker();
        let Some(giving) = worker.handover() else { return false };
        let route = self.route().map(|route| format!("{ROUTES}{}", route.spec.id));
        self.is_open() && worker.gives(&self.client) && route.is_some_and(|key| giving.takes_route(&key))
    }

    /// Whether it stays for now, to be tried again later.
    fn is_held(&self) -> bool {
        let worker = self.worker();
        let is_held = worker.devices.as_ref().is_some_and(|devices| devices.held.is_held());
        match worker.handover() {
            Some(giving) if is_held => {
                giving.request_another_pass();
                true
            }
            _ => false,
        }
    }

    fn is_quiet(&self) -> bool {
        let session = self
            .session
            .as_ref()
            .is_some_and(|session| session.is_movable() && session.queued_bytes() <= DEVICE_MESSAGES_BYTES_MAX);
        session
            && !self.awaits_session
            && self.reader.is_idle()
            && self.output.is_idle()
            && self.more.early.is_empty()
            && self.more.held.is_empty()
            && self.has_no_events()
    }

    /// Whether no event of the device waits for the upstream.
    fn has_no_events(&self) -> bool {
        let queues = self.worker().devices.as_ref().map(|devices| &devices.events);
        self.more.events.as_ref().zip(queues).is_none_or(|(events, queues)| events.is_idle(queues))
    }

    fn pack(&mut self) -> io::Result<Parcel> {
        let worker = self.worker().clone();
        let socket = share(&self.client.stream)?;
        let mut bytes = self.more.request.head.to_vec();
        let request = self.request_state();
        let route = self.route().map(|route| format!("{ROUTES}{}", route.spec.id)).unwrap_or_default();
        let labels = &self.more.labels;
        let labels = labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let carried = self.session.as_mut().and_then(|session| session.carry(session.token(), &mut Vec::new()).ok());
        let carried = carried.ok_or(io::ErrorKind::InvalidInput)?;
        if carried.messages.len() > DEVICE_MESSAGES_MAX {
            self.session = Some(resume_session(carried, self.more.generation));
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let messages = carried.messages.iter().map(|OutgoingMessage { id, seq, encoded }| {
            bytes.extend_from_slice(encoded.as_bytes());
            let (bytes, is_text) = (encoded.len(), encoded.is_text());
            MessageState { id: id.to_string(), seq: *seq, bytes, is_text }
        });
        let messages = messages.collect();
        let credential = self.more.admission.as_ref().map(|admission| CredentialState {
            consumer: admission.consumer.to_string(),
            credential: admission.credential.as_ref().map(|id| id.to_string()),
            mark: admission.credential_fingerprint,
            until_ms: admission.until_ms,
        });
        let state = DeviceState {
            connection: worker.state_of(&self.client),
            address: self.client.address,
            request,
            route,
            device: self.more.device.to_string(),
            labels,
            protocol: match self.protocol {
                DeviceProtocol::Json => ProtocolState::Json,
                DeviceProtocol::Cbor => ProtocolState::Cbor,
                DeviceProtocol::Raw => ProtocolState::Raw,
            },
            generation: self.more.generation.0,
            since_ms: self.more.since_ms,
            session: carried.id.to_string(),
            sent: carried.sent,
            messages,
            is_settled: self.is_settled,
            credential,
            received: self.more.received,
            written: self.more.sent_before + self.output.total,
            events: self.more.events.as_ref().map_or(0, Events::seq),
        };
        Ok(Parcel { state: HandedState::Device(Box::new(state)), bytes, sockets: vec![socket] })
    }

    fn request_state(&self) -> RequestState {
        let worker = self.worker();
        let UpgradedRequest { head, outcome, .. } = &*self.more.request;
        let kept = outcome.kept.as_ref();
        let kept = kept.filter(|kept| worker.route_places.is_present(&worker.snapshot(), &kept.route));
        RequestState {
            head: head.len(),
            path: kept.map(|kept| kept.path),
            status: outcome.status,
            head_bytes: outcome.head_bytes,
            upstream_us: None,
            tries: Vec::new(),
            started_us: outcome.started.map(|time| time.elapsed().as_micros() as u64),
            node_since_us: None,
        }
    }
}

/// Builds a session on its previous connection.
fn resume_session(carried: SessionTransfer, generation: Generation) -> Session {
    let mut session = Session::from_carried(carried, generation, crate::device_link::process_ms());
    session.keep_handed_out();
    session
}

/// Continues a connection that another process has given.
pub(crate) fn take(
    open: Open,
    mut client: ClientConnection,
    state: &DeviceState,
    bytes: &[u8],
    is_changed: bool,
) -> Result<(), ParcelError> {
    let worker = open.worker.clone();
    let snapshot = worker.snapshot();
    client.address = state.address;
    client.is_new = false;
    let damaged = |why: String| ParcelError(format!("device {:?}: {why}", state.device));
    let devices = worker.devices.as_ref().ok_or_else(|| damaged("gateway.devices is not configured".to_owned()))?;
    let id = state.route.strip_prefix(ROUTES).unwrap_or_default();
    let place = worker.route_places.route(&snapshot, id);
    let place = place.ok_or_else(|| damaged(format!("its route {id:?} is gone")))?;
    let route = &snapshot.plan.routes[place];
    let settings = route.route.devices();
    let settings = settings.ok_or_else(|| damaged(format!("its route {id:?} takes no devices")))?.clone();
    let protocol = match state.protocol {
        ProtocolState::Json => DeviceProtocol::Json,
        ProtocolState::Cbor => DeviceProtocol::Cbor,
        ProtocolState::Raw => DeviceProtocol::Raw,
    };
    let (head, rest) = bytes.split_at(state.request.head);
    let messages = messages(state, rest).ok_or_else(|| damaged("the id of a message is none".to_owned()))?;
    let session = u128::from_str_radix(&state.session, 16).map_err(|error| damaged(error.to_string()))?;
    let generation = Generation(state.generation);
    let carried = SessionTransfer { id: SessionId(session), sent: state.sent, messages };
    let device: Arc<str> = state.device.as_str().into();
    let labels: Box<[(Box<str>, Box<str>)]> =
        state.labels.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into())).collect();
    let facts = DeviceFacts {
        device: device.clone(),
        labels: labels.clone(),
        protocol,
        peer: client.peer,
        route: devices.route(id),
        settings: settings.clone(),
    };
    let request = reported_request(state, &worker, head, (place, route), is_changed);
    let admission = state.credential.as_ref().map(|credential| DeviceAdmission {
        consumer: credential.consumer.as_str().into(),
        credential: credential.credential.as_deref().map(Into::into),
        credential_fingerprint: credential.mark,
        until_ms: credential.until_ms,
    });
    let mut own = DeviceRegistration::new(&worker, devices);
    // Its admission is certain; a device with a newer connection closes this one.
    drop(own.ask(facts, Some(FormerConnection { generation, since_ms: state.since_ms })));
    let resumed = ResumedDevice {
        place: own,
        device,
        labels,
        protocol,
        settings,
        generation,
        session: resume_session(carried, generation),
        request: Box::new(request),
        admission,
        lease: lease(route.lease.as_ref(), is_changed),
        received: state.received,
        written: state.written,
        since_ms: state.since_ms,
        is_settled: state.is_settled,
        events: state.events,
    };
    drop(snapshot);
    spawn_local(DeviceConnection::resume(open, client, resumed));
    Ok(())
}

/// Messages that the device has not acknowledged; `None`: one has no id.
fn messages(state: &DeviceState, mut bytes: &[u8]) -> Option<Vec<OutgoingMessage>> {
    let mut messages = Vec::with_capacity(state.messages.len());
    for message in &state.messages {
        let (encoded, behind) = bytes.split_at(message.bytes);
        let encoded = EncodedBody::from_parts(encoded, message.is_text);
        messages.push(OutgoingMessage { id: MessageId::parse(&message.id)?, seq: message.seq, encoded });
        bytes = behind;
    }
    Some(messages)
}

/// What the access log and the metrics will report.
fn reported_request(
    state: &DeviceState,
    worker: &Worker,
    head: &[u8],
    (place, route): (usize, &PlanRoute),
    is_changed: bool,
) -> UpgradedRequest {
    let paths = route.route.spec.uri().map_or(1, |uri| uri.paths.len());
    let path = state.request.path.filter(|path| *path < paths).unwrap_or(0);
    let since = |ago_us| Instant::now().checked_sub(Duration::from_micros(ago_us));
    let outcome = RequestOutcome {
        timing: worker.timing(),
        started: state.request.started_us.and_then(since),
        status: state.request.status,
        head_bytes: state.request.head_bytes,
        route: Some(Match { route: place, path }).filter(|_| !is_changed),
        kept: Some(Rc::new(RetainedConfig { route: route.route.clone(), path, upstream: None })),
        ..RequestOutcome::default()
    };
    let (tries, fields) = (NodeTries::default(), ResponseFields::default());
    UpgradedRequest { head: head.into(), outcome, tries, fields, chains: None }
}

/// The lease that it holds: if its route has changed, one that was already revoked.
fn lease(present: Option<&Arc<Lease>>, is_changed: bool) -> Option<Arc<Lease>> {
    let present = present?;
    if !is_changed || present.policy == OnChange::Keep {
        return Some(present.clone());
    }
    let lease = Lease::new(present.policy);
    lease.revoke();
    Some(Arc::new(lease))
}

impl DeviceAdmission {
    /// Whether its consumer still exists with the same credential.
    fn holds(&self, consumers: &Consumers) -> bool {
        let Some(named) = consumers.find_by_name(&self.consumer) else { return false };
        let credential = match &self.credential {
            None => None,
            Some(id) => {
                let ids = &consumers.of(named).credentials;
                let Some(place) = ids.iter().position(|known| known == id) else { return false };
                u16::try_from(place).ok()
            }
        };
        consumers.credential_fingerprint(ConsumerRef { credential, ..named }) == Some(self.credential_fingerprint)
    }
}
