//! Watches changes below the prefix after a revision, as etcd sends them.
//!
//! A silent watch may be quiet, or its member may be stopped, partitioned or restored from a backup. So a quiet watch
//! requests the member's current revision every few seconds, on another connection: a read that needs the majority.
//! etcd's `progress_request` would test the watch itself, but it needs a request body that stays open during the
//! response: over HTTP/1.1 etcd allows that only with `Connection: close`, and proxies in between do not. A dead
//! connection of the watch itself, which this probe does not notice, is detected by TCP's keep-alive; one that a proxy
//! keeps open, by a comparison of what etcd has below the prefix with what the watch has delivered; and both by etcd's
//! notifications every ten minutes.

use super::Etcd;
use super::call::{EtcdConnection, RESPONSE_BYTES_MAX, misunderstood};
use super::digest::DocumentsDigest;
use super::error::{EtcdError, RANGE, document};
use super::layout::is_directory;
use super::message::{
    AlarmRequest, AlarmResponse, EtcdErrorBody, EtcdHeader, KeyValue, Number, RangeRequest, RangeResponse, WatchCreate,
    WatchEvent, WatchLine, WatchRequest, WatchResponse,
};
use crate::document::{Batch, Event};
use bytes::{Buf as _, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// The interval of probes to the member of a quiet watch.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// The interval in which etcd is asked for changes that a quiet watch has not delivered, if its revision has risen.
const COMPARE_INTERVAL: Duration = Duration::from_secs(10);

/// etcd sends notifications of progress every ten minutes. A watch that is silent for longer than this is dead, even if
/// its member answers.
const SILENCE_MAX: Duration = Duration::from_secs(15 * 60);

const WATCH: &str = "/v3/watch";
const ALARM: &str = "/v3/maintenance/alarm";

/// A running watch. It ends when dropped.
pub struct EtcdWatch<'a> {
    etcd: &'a Etcd,
    endpoint: usize,
    body: Incoming,
    _connection: EtcdConnection,
    /// Received bytes without a line end yet.
    buffer: BytesMut,
    /// The length of the buffer that was searched for a line end.
    scanned: usize,
    /// Received events that were not taken yet.
    ready: VecDeque<EtcdWatchEvent>,
    /// The highest known revision, and its cluster.
    seen: (u64, u64),
    /// The number of keys below the prefix at that revision, if it is known.
    keys: Option<u64>,
    /// etcd had changes that the watch has not delivered, when it was last compared.
    is_owed: bool,
    /// etcd takes no writes, as far as that was reported.
    is_full: bool,
    heard_at: Instant,
    probed_at: Instant,
    compared_at: Instant,
}

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchStart {
    /// The revision that is known already.
    pub after: u64,
    /// The cluster that it is of.
    pub cluster: u64,
    /// The number of keys below the prefix at that revision. `None`: it is not known, and a watch that delivers nothing any more is
    /// noticed by its silence only, after a quarter of an hour.
    pub keys: Option<u64>,
}

/// Events of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EtcdWatchEvent {
    /// All changes of one revision.
    Batch(Batch),
    /// Everything up to this revision has been delivered.
    Progress(u64),
    /// The member of a quiet watch answered, and etcd is at this revision.
    Heard(u64),
    /// etcd takes no writes, for this reason.
    WritesRefused(String),
    /// etcd takes writes again.
    WritesTaken,
}

impl Etcd {
    /// Watches from a revision of a cluster on. Changes of that revision itself may come again: etcd before 3.5.18 loses
    /// deletions of the oldest revision it keeps (etcd-io/etcd#18274, #19188), so a watch that begins one later could miss
    /// some without an error.
    ///
    /// # Errors
    /// If no endpoint answers, etcd refuses, or has no history from there on.
    pub async fn watch(&self, start: WatchStart) -> Result<EtcdWatch<'_>, EtcdError> {
        self.caller.follow(start.cluster);
        let mut tried = Vec::new();
        loop {
            let index = self.caller.choose(&tried);
            tried.push(index);
            let opened = self.watch_at(index, start).await;
            self.caller.note(index, opened.as_ref().err());
            match opened {
                Err(error) if self.caller.may_ask_another(&error, &tried) => {}
                opened => return opened.map_err(|error| self.caller.settled(error)),
            }
        }
    }

    /// Makes sure that etcd has the history up to a position: that it had these documents then. Returns the number of keys below the
    /// prefix at that time.
    ///
    /// # Errors
    /// If no endpoint answers, etcd refuses, or the documents were others.
    pub(crate) async fn must_have(&self, at: WatchStart, documents: &DocumentsDigest) -> Result<u64, EtcdError> {
        let (mut found, mut keys) = (documents.empty(), 0);
        let read = self.read_pages(Some(Number(at.after)), |pair| {
            keys += 1;
            if let Some(key) = self.layout.key_of(&pair.key.0).filter(|key| !is_directory(key, &pair.value.0)) {
                found.put(&key, &document(pair).0);
            }
        });
        let header = match read.await {
            Err(EtcdError::Refused { message, .. }) if message.contains("future revision") => {
                let why = format!("it is not at revision {} yet, and was before", at.after);
                return Err(EtcdError::Replaced { why });
            }
            read => read?,
        };
        same_history(&header, (at.after, at.cluster))?;
        match found.is_same(documents) {
            true => Ok(keys),
            false => Err(EtcdError::Replaced { why: format!("it had other documents at revision {}", at.after) }),
        }
    }

    async fn watch_at(&self, endpoint: usize, start: WatchStart) -> Result<EtcdWatch<'_>, EtcdError> {
        let WatchStart { after, cluster, keys } = start;
        // Also proves that the token is valid; a watch would only report missing permissions.
        self.probe(endpoint, (after, cluster)).await?;
        let (key, range_end) = self.layout.range();
        let start_revision = Number(after.max(1));
        let create =
            WatchCreate { key: key.into(), range_end: range_end.into(), start_revision, progress_notify: true };
        let request = WatchRequest { create_request: create };
        let (connection, body) = self.caller.stream_at(endpoint, WATCH, &request).await?;
        let now = Instant::now();
        let mut watch = EtcdWatch {
            etcd: self,
            endpoint,
            body,
            _connection: connection,
            buffer: BytesMut::new(),
            scanned: 0,
            ready: VecDeque::new(),
            seen: (after, cluster),
            keys,
            is_owed: false,
            is_full: false,
            heard_at: now,
            probed_at: now,
            compared_at: now,
        };
        match timeout(self.caller.timeout, watch.wait_until_created()).await {
            Ok(created) => created.map(|()| watch),
            Err(_) => Err(watch.lost_error("the watch was not confirmed in time")),
        }
    }

    /// Sends a small request that needs the majority to a member, and returns etcd's revision. An error if its history
    /// is not the one that was seen.
    async fn probe(&self, endpoint: usize, seen: (u64, u64)) -> Result<u64, EtcdError> {
        let answer: RangeResponse = self.caller.call_at(endpoint, RANGE, &self.caller.small_read()).await?;
        same_history(&answer.header, seen)?;
        Ok(answer.header.revision.0)
    }

    /// Whether anything below the prefix was written or deleted after a revision, when there were this many keys; with etcd's revision.
    async fn has_changed(&self, endpoint: usize, seen: (u64, u64), keys: u64) -> Result<(bool, u64), EtcdError> {
        let (key, range_end) = self.layout.range();
        let request = RangeRequest {
            key: key.into(),
            range_end: Some(range_end.into()),
            limit: Some(Number(1)),
            min_mod_revision: Some(Number(seen.0 + 1)),
            keys_only: true,
            ..RangeRequest::default()
        };
        let answer: RangeResponse = self.caller.call_at(endpoint, RANGE, &request).await?;
        same_history(&answer.header, seen)?;
        // A key that was deleted and written again has a later revision.
        Ok((!answer.kvs.is_empty() || answer.count.0 != keys, answer.header.revision.0))
    }
}

impl EtcdWatch<'_> {
    /// Waits for the next event. May be dropped while it waits, and called again.
    ///
    /// # Errors
    /// If the watch is over; it cannot be used any more.
    pub async fn next(&mut self) -> Result<EtcdWatchEvent, EtcdError> {
        let ended = loop {
            if let Some(watched) = self.ready.pop_front() {
                return Ok(watched);
            }
            if let Err(error) = self.hear().await {
                break error;
            }
        };
        self.etcd.caller.note(self.endpoint, Some(&ended));
        if matches!(ended, EtcdError::Refused { .. }) {
            // Here an old token looks like a missing permission.
            self.etcd.caller.renew_token();
        }
        Err(ended)
    }

    async fn wait_until_created(&mut self) -> Result<(), EtcdError> {
        loop {
            let frame = self.body.frame().await;
            if self.receive(frame)? {
                return Ok(());
            }
        }
    }

    /// Receives bytes, or makes sure that the member answers.
    async fn hear(&mut self) -> Result<(), EtcdError> {
        let probe = async {
            sleep_until(self.probed_at + PROBE_INTERVAL).await;
            self.etcd.probe(self.endpoint, self.seen).await
        };
        tokio::select! {
            biased;
            frame = self.body.frame() => {
                self.receive(frame)?;
                self.heard_at = Instant::now();
                self.probed_at = self.heard_at;
                self.is_owed = false;
            }
            probed = probe => {
                let revision = probed?;
                self.ready.push_back(EtcdWatchEvent::Heard(revision));
                self.probed_at = Instant::now();
                self.compare(revision).await?;
                self.look_at_space().await;
                if self.heard_at.elapsed() > SILENCE_MAX {
                    return Err(self.lost_error("the watch has been silent for too long"));
                }
            }
        }
        Ok(())
    }

    /// Makes sure that a quiet watch has missed nothing, if etcd has a later revision: other prefixes have it too. What is missing may
    /// still be on its way; at the next probe it is not.
    async fn compare(&mut self, revision: u64) -> Result<(), EtcdError> {
        let Some(keys) = self.keys else { return Ok(()) };
        let is_due = self.is_owed || self.compared_at.elapsed() >= COMPARE_INTERVAL;
        if revision <= self.seen.0 || !is_due {
            return Ok(());
        }
        self.compared_at = Instant::now();
        let (has_changed, revision) = self.etcd.has_changed(self.endpoint, self.seen, keys).await?;
        match (has_changed, self.is_owed) {
            (false, _) => {
                self.is_owed = false;
                self.seen.0 = revision;
                self.ready.push_back(EtcdWatchEvent::Progress(revision));
                Ok(())
            }
            (true, false) => {
                self.is_owed = true;
                Ok(())
            }
            (true, true) => {
                Err(self.lost_error("the watch does not deliver changes; does a proxy keep its connection?"))
            }
        }
    }

    /// Finds out whether etcd takes writes again, if it has refused one.
    async fn look_at_space(&mut self) {
        let is_full = self.etcd.is_full.load(Ordering::Relaxed) && {
            let alarms = self.etcd.caller.call_at(self.endpoint, ALARM, &AlarmRequest { action: "GET" }).await;
            // Without an answer it is as before.
            alarms
                .map_or(true, |response: AlarmResponse| response.alarms.iter().any(|member| member.alarm == "NOSPACE"))
        };
        match (is_full, self.is_full) {
            (true, false) => {
                let url = self.etcd.caller.url(self.endpoint);
                let reason = format!(
                    "etcd at {url} takes no writes: its space is used up; compact and defragment it, then clear its alarm"
                );
                self.ready.push_back(EtcdWatchEvent::WritesRefused(reason));
            }
            (false, true) => self.ready.push_back(EtcdWatchEvent::WritesTaken),
            _ => {}
        }
        if !is_full {
            self.etcd.is_full.store(false, Ordering::Relaxed);
        }
        self.is_full = is_full;
    }

    /// Returns whether the watch was confirmed.
    fn receive(
        &mut self,
        frame: Option<Result<hyper::body::Frame<bytes::Bytes>, hyper::Error>>,
    ) -> Result<bool, EtcdError> {
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Err(self.etcd.caller.connection_error(self.endpoint, &error)),
            None => return Err(self.lost_error("it closed the watch")),
        };
        if let Some(data) = frame.data_ref() {
            self.buffer.extend_from_slice(data);
        }
        let mut is_created = false;
        while let Some(at) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') {
            let line = self.buffer.split_to(self.scanned + at);
            self.buffer.advance(1);
            self.scanned = 0;
            is_created |= self.line(&line)?;
        }
        self.scanned = self.buffer.len();
        match self.scanned > RESPONSE_BYTES_MAX {
            true => Err(EtcdError::TooLarge {
                endpoint: self.etcd.caller.url(self.endpoint),
                bytes_max: RESPONSE_BYTES_MAX,
            }),
            false => Ok(is_created),
        }
    }

    /// Returns whether the line confirms the watch.
    fn line(&mut self, line: &[u8]) -> Result<bool, EtcdError> {
        let caller = &self.etcd.caller;
        let unreadable = |why: String| EtcdError::Unreadable { endpoint: caller.url(self.endpoint), why };
        let line: WatchLine = serde_json::from_slice(line).map_err(|error| unreadable(misunderstood(&error)))?;
        let response = match (line.result, line.error) {
            (_, Some(refusal)) => return Err(caller.status_error(self.endpoint, refusal)),
            (Some(response), None) => response,
            (None, None) => return Err(unreadable("a line of a watch with neither result nor error".to_owned())),
        };
        if response.compact_revision.0 > 0 {
            return Err(EtcdError::Compacted { oldest: Some(response.compact_revision.0) });
        }
        if response.canceled {
            let message = format!("the watch was cancelled: {}", response.cancel_reason);
            return Err(caller
                .status_error(self.endpoint, EtcdErrorBody { message: Some(message), ..EtcdErrorBody::default() }));
        }
        if response.created {
            // A member may lag behind, so its revision is not compared; the probe has done that.
            return Ok(true);
        }
        self.take(response);
        Ok(false)
    }

    fn take(&mut self, response: WatchResponse) {
        if response.events.is_empty() {
            self.seen.0 = self.seen.0.max(response.header.revision.0);
            return self.ready.push_back(EtcdWatchEvent::Progress(response.header.revision.0));
        }
        let mut events = response.events.into_iter().peekable();
        // In the order of revisions; all of one revision is in one response.
        while let Some(revision) = events.peek().map(|event| event.kv.mod_revision.0) {
            let mut batch = Batch { revision, events: Vec::new() };
            while let Some(event) = events.next_if(|event| event.kv.mod_revision.0 == revision) {
                self.count(&event);
                batch.events.extend(self.event(event));
            }
            self.seen.0 = self.seen.0.max(revision);
            self.ready.push_back(match batch.events.is_empty() {
                true => EtcdWatchEvent::Progress(revision),
                false => EtcdWatchEvent::Batch(batch),
            });
        }
    }

    /// Counts keys. A change that is known already is not counted again.
    fn count(&mut self, event: &WatchEvent) {
        let KeyValue { create_revision, mod_revision, .. } = &event.kv;
        if mod_revision.0 <= self.seen.0 {
            return;
        }
        let is_deleted = event.r#type == "DELETE";
        let is_new = !is_deleted && create_revision == mod_revision;
        self.keys = self.keys.map(|keys| (keys + u64::from(is_new)).saturating_sub(u64::from(is_deleted)));
    }

    /// `None` if the key is not a document's.
    fn event(&self, event: WatchEvent) -> Option<Event> {
        let key = self.etcd.layout.key_of(&event.kv.key.0)?;
        if event.r#type == "DELETE" || is_directory(&key, &event.kv.value.0) {
            return Some(Event { key, document: None });
        }
        let (document, problem) = document(event.kv);
        if let Some(why) = problem {
            self.etcd.unreadable(&key, why);
        }
        Some(Event { key, document: Some(document) })
    }

    fn lost_error(&self, why: &str) -> EtcdError {
        self.etcd.caller.unreachable(self.endpoint, why.to_owned(), true)
    }
}

impl fmt::Debug for EtcdWatch<'_> {
    /// Without the received data, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdWatch").field("etcd", self.etcd).field("seen", &self.seen).finish_non_exhaustive()
    }
}

/// Whether a member that answers with this header can have the history that was seen.
fn same_history(header: &EtcdHeader, seen: (u64, u64)) -> Result<(), EtcdError> {
    let why = match (header.revision.0, header.cluster_id.0) {
        (_, cluster) if cluster != seen.1 => "another cluster answers".to_owned(),
        (revision, _) if revision < seen.0 => format!("it is at revision {revision}, and was at {} before", seen.0),
        _ => return Ok(()),
    };
    Err(EtcdError::Replaced { why })
}
