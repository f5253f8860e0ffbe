//! A mix recorded by a browser or proxy: HAR 1.2 (`log.entries[].request`).
//!
//! Equal requests become one entry with their number as its weight. Parts that belonged to the recorded connection are
//! dropped (HTTP/2 pseudo-headers, hop-by-hop fields, lengths); the Host is the target's. The recorded status is
//! expected. Recordings are long, so most of the text is kept only as positions; `${` has no special meaning in it.

use super::errors::{Findings, Location, quoted};
use super::request::{Draft, Expect, STATUS_MAX, STATUS_MIN, StatusSet, ValueAt};
use super::template::Template;
use super::{Entry, EntryBytes, Mix, MixErrors};
use crate::target::{Target, TargetError};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct File<'a> {
    #[serde(borrow)]
    log: Log<'a>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Log<'a> {
    #[serde(borrow)]
    entries: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct RecordedEntry<'a> {
    #[serde(borrow)]
    request: &'a RawValue,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
struct Request<'a> {
    #[serde(borrow)]
    method: &'a RawValue,
    #[serde(borrow)]
    url: &'a RawValue,
    #[serde(borrow, default)]
    headers: Vec<&'a RawValue>,
    #[serde(borrow)]
    post_data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Response {
    /// Zero or less without an answer.
    status: Option<i64>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Pair {
    name: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
struct PostData {
    mime_type: Option<String>,
    text: Option<String>,
    #[serde(default)]
    params: Vec<Pair>,
    /// Not in the standard; some recorders write `base64`.
    encoding: Option<String>,
}

/// Fields that belong to a connection (RFC 9110 section 7.6.1) or that are written again.
const DROPPED: &[&str] = &[
    "connection",
    "content-length",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Most other hosts that a message names.
const HOSTS_NAMED_MAX: usize = 5;

const SWITCHING_PROTOCOLS: i64 = 101;

/// Reads a mix.
pub(super) fn read(text: &str, origin: &Path, target: &Target) -> Result<Mix, MixErrors> {
    let origin = origin.display().to_string();
    let mut reader = Reader {
        text,
        target,
        findings: Findings::default(),
        entries: Vec::new(),
        known: HashMap::new(),
        other_hosts: BTreeMap::new(),
        not_http: 0,
    };
    let recorded = reader.log();
    for raw in &recorded {
        reader.entry(raw);
    }
    if reader.entries.is_empty() && reader.findings.is_empty() {
        let message = reader.nothing_left(recorded.len());
        reader.findings.add(Location::Nowhere, message);
    }
    let notes = reader.notes(recorded.len());
    reader.findings.into_result(&origin, text)?;
    Ok(Mix::new(reader.entries, Vec::new(), notes))
}

struct Reader<'a> {
    text: &'a str,
    target: &'a Target,
    findings: Findings,
    entries: Vec<(Entry, u32)>,
    /// The index of each entry by its bytes.
    known: HashMap<Arc<[u8]>, usize>,
    /// Other hosts, with the number of their entries that were left out.
    other_hosts: BTreeMap<String, usize>,
    /// The number of entries that were left out because they were not HTTP.
    not_http: usize,
}

impl<'a> Reader<'a> {
    fn log(&mut self) -> Vec<&'a RawValue> {
        if self.text.trim().is_empty() {
            self.findings.add(Location::Byte(0), "the file is empty; export the recording again as HAR");
            return Vec::new();
        }
        let entries = self.parsed::<File<'a>>(self.text, "a HAR file is an object with `log.entries`");
        entries.map(|file| file.log.entries).unwrap_or_default()
    }

    fn entry(&mut self, raw: &'a RawValue) {
        let want = "an entry has a `request` and a `response`";
        let Some(RecordedEntry { request, response }) = self.parsed::<RecordedEntry<'a>>(raw.get(), want) else {
            return;
        };
        let want = "a request has `method`, `url` and `headers`";
        let Some(request) = self.parsed::<Request<'a>>(request.get(), want) else { return };
        let status = response.and_then(|raw| self.parsed::<Response>(raw.get(), "a response has a `status` number"));
        let status = status.and_then(|response| response.status);
        let Some(method) = self.parsed::<String>(request.method.get(), "a method is text") else { return };
        let Some(url) = self.parsed::<String>(request.url.get(), "a URL is text") else { return };
        if status == Some(SWITCHING_PROTOCOLS) || method == "CONNECT" {
            self.not_http += 1;
            return;
        }
        let path = match path(&url, self.target) {
            Ok(UrlOwner::Target(path)) => path,
            Ok(UrlOwner::Other(host)) => return *self.other_hosts.entry(host).or_default() += 1,
            Ok(UrlOwner::NotHttp) => return self.not_http += 1,
            Err(error) => return self.findings.add(self.place(request.url.get()), error.to_string()),
        };
        let headers = self.headers(&request.headers);
        let (body, content_type) = request.post_data.map(|raw| self.body(raw)).unwrap_or_default();
        let draft = Draft {
            name: None,
            method: ValueAt { at: self.place(request.method.get()), value: method },
            path: ValueAt { at: self.place(request.url.get()), value: Template::literal(path) },
            headers,
            body: body.map(Template::literal),
            content_type,
            expect: Expect { statuses: statuses(status), body: None },
        };
        if let Some(entry) = draft.entry(&self.target.host, &[], &mut self.findings) {
            self.count(entry);
        }
    }

    /// Counts an entry again if it is known, or adds it.
    fn count(&mut self, entry: Entry) {
        // Recorded requests have no variables.
        let EntryBytes::Fixed(bytes) = &entry.sent else { return };
        match self.known.get(bytes) {
            Some(&index) => {
                let (known, weight) = &mut self.entries[index];
                known.expect.statuses.merge(&entry.expect.statuses);
                *weight += 1;
            }
            None => {
                self.known.insert(bytes.clone(), self.entries.len());
                self.entries.push((entry, 1));
            }
        }
    }

    fn headers(&mut self, raw: &[&'a RawValue]) -> Vec<(ValueAt<String>, ValueAt<Template>)> {
        let mut headers = Vec::new();
        for raw in raw {
            let at = self.place(raw.get());
            let Some(Pair { name, value }) = self.parsed(raw.get(), "a header has a `name` and a `value`") else {
                continue;
            };
            if !name.starts_with(':') && !DROPPED.contains(&name.to_ascii_lowercase().as_str()) {
                headers.push((ValueAt { at, value: name }, ValueAt { at, value: Template::literal(value) }));
            }
        }
        headers
    }

    /// The body, and its type.
    fn body(&mut self, raw: &'a RawValue) -> (Option<Vec<u8>>, Option<String>) {
        let want = "`postData` has a `mimeType` with `text` or `params`";
        let Some(PostData { mime_type, text, params, encoding }) = self.parsed(raw.get(), want) else {
            return (None, None);
        };
        let mime_type = mime_type.filter(|mime_type| !mime_type.is_empty());
        let is_form =
            mime_type.as_ref().is_some_and(|mime_type| mime_type.starts_with("application/x-www-form-urlencoded"));
        let body = match text.filter(|text| !text.is_empty()) {
            Some(text) if encoding.as_deref() == Some("base64") => match STANDARD.decode(text) {
                Ok(body) => Some(body),
                Err(error) => {
                    let message = format!("the body is not base64 ({error}); record it again, or remove `encoding`");
                    self.findings.add(self.place(raw.get()), message);
                    None
                }
            },
            Some(text) => Some(text.into_bytes()),
            None if params.is_empty() => None,
            None if is_form => {
                let pairs = params.iter().map(|Pair { name, value }| (name, value));
                Some(form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish().into_bytes())
            }
            None => {
                let message =
                    "the body was not recorded, only its parts were; record it with its `text`, or remove this entry";
                self.findings.add(self.place(raw.get()), message);
                None
            }
        };
        let mime_type = mime_type.filter(|_| body.is_some());
        if let Some(mime_type) = &mime_type
            && mime_type.bytes().any(|byte| byte.is_ascii_control())
        {
            let message = format!("{} is not a type of a body; fix `mimeType`", quoted(mime_type));
            self.findings.add(self.place(raw.get()), message);
        }
        (body, mime_type)
    }

    /// A part of the text as a value.
    fn parsed<T: Deserialize<'a>>(&mut self, part: &'a str, want: &str) -> Option<T> {
        match serde_json::from_str(part) {
            Ok(value) => Some(value),
            Err(error) => {
                let begin = byte_of(part, error.line(), error.column());
                let at = Location::Byte(self.offset(part) + begin);
                let error = error.to_string();
                let what = error.split(" at line ").next().unwrap_or_default();
                self.findings.add(at, format!("{what}; {want}"));
                None
            }
        }
    }

    fn place(&self, part: &str) -> Location {
        Location::Byte(self.offset(part))
    }

    /// The beginning of a part of the text in it.
    fn offset(&self, part: &str) -> usize {
        (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize)
    }

    fn nothing_left(&self, recorded: usize) -> String {
        if recorded == 0 {
            return "no entries; record the requests again".to_owned();
        }
        if self.other_hosts.is_empty() {
            return format!("none of the {recorded} entries is an HTTP request; record the requests again");
        }
        format!(
            "none of the {recorded} entries is for {}; they are for {}; use a URL of that host, or replace the host in the file",
            self.target.host,
            self.other_hosts_text()
        )
    }

    fn notes(&self, recorded: usize) -> Vec<String> {
        let mut notes = Vec::new();
        let others: usize = self.other_hosts.values().sum();
        if others > 0 {
            let hosts = self.other_hosts_text();
            notes.push(format!("{others} of {recorded} entries are for other hosts and were left out: {hosts}"));
        }
        if self.not_http > 0 {
            notes.push(format!(
                "{} of {recorded} entries are not HTTP requests (WebSocket, data: and the like) and were left out",
                self.not_http
            ));
        }
        notes
    }

    /// The hosts with the most entries first.
    fn other_hosts_text(&self) -> String {
        let mut hosts: Vec<(&String, &usize)> = self.other_hosts.iter().collect();
        hosts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        let named = hosts.iter().take(HOSTS_NAMED_MAX).map(|(host, count)| format!("{host} ({count})"));
        let more = hosts.len().saturating_sub(HOSTS_NAMED_MAX);
        let rest = (more > 0).then(|| format!("{more} more"));
        named.chain(rest).collect::<Vec<_>>().join(", ")
    }
}

/// The owner of a URL.
enum UrlOwner {
    /// The target, with this path.
    Target(String),
    Other(String),
    NotHttp,
}

/// A recording over TLS may be replayed without it and the other way around: then only the names of the hosts are
/// compared, because another listener is there.
fn path(url: &str, target: &Target) -> Result<UrlOwner, TargetError> {
    let url = url.split('#').next().unwrap_or_default();
    let (scheme, _) = url.split_once("://").unwrap_or_default();
    if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return Ok(UrlOwner::NotHttp);
    }
    let recorded = Target::parse(url)?;
    let is_targets = match recorded.is_secure == target.is_secure {
        true => recorded.host == target.host,
        false => recorded.name == target.name,
    };
    Ok(if is_targets { UrlOwner::Target(recorded.path_and_query) } else { UrlOwner::Other(recorded.host) })
}

fn statuses(recorded: Option<i64>) -> StatusSet {
    let status = recorded.and_then(|status| u16::try_from(status).ok());
    match status.filter(|status| (STATUS_MIN..=STATUS_MAX).contains(status)) {
        None => StatusSet::default(),
        Some(status) => {
            let mut statuses = StatusSet::EMPTY;
            statuses.add(status, status);
            statuses
        }
    }
}

/// The byte at the parser's line and column, both counted from one and in bytes.
fn byte_of(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    (start + column.saturating_sub(1)).min(text.len())
}
