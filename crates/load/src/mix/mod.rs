//! The requests of a load: one, or a weighted mix from a YAML or HAR file.
//!
//! A mix is read and checked once, before the run; all its errors are reported at once, with their places. After that a
//! [`Composer`] for each thread makes requests from it that are ready to send. This module does not depend on
//! connections or time.

mod choice;
mod composer;
mod errors;
mod expect;
mod files;
mod har;
mod request;
mod template;
mod variable;
mod yaml;

pub use composer::{ComposedRequest, Composer};
pub use errors::{FINDINGS_MAX, Finding, MixErrors};
pub use expect::Expect;
pub use stillgate_yaml::Position;

use crate::target::Target;
use choice::Choice;
use errors::{Findings, Location};
use expect::{BodyCheck, Statuses};
use request::{Draft, Positioned};
use std::path::Path;
use std::sync::Arc;
use stillgate_wire::Method;
use template::Template;
use variable::Variable;

/// Requests with their weights; at least one. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Mix {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    entries: Vec<Entry>,
    weights: Vec<u32>,
    choice: Choice,
    variables: Vec<Variable>,
    notes: Vec<String>,
}

/// One request of a mix, or many alike that differ in their variables.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its name in the file, otherwise method and path.
    pub name: String,
    /// Its method, which affects where the answer ends.
    pub method: Method,
    /// The expected answer.
    pub expect: Expect,
    /// The names of its header fields, as written.
    pub(crate) fields: Vec<String>,
    sent: EntryBytes,
}

impl Entry {
    /// Its constant bytes; `None` if it has variables.
    pub(crate) fn fixed(&self) -> Option<&[u8]> {
        match &self.sent {
            EntryBytes::Fixed(bytes) => Some(bytes),
            EntryBytes::Filled { .. } => None,
        }
    }
}

/// The bytes to send for an entry.
#[derive(Debug, Clone)]
enum EntryBytes {
    /// Always the same.
    Fixed(Arc<[u8]>),
    /// With variables.
    Filled {
        /// Everything, or everything before the length of a body with variables.
        head: Template,
        /// A body with variables.
        body: Option<Template>,
    },
}

impl Mix {
    /// A mix of one request, without variables. The Host field is `host` unless the headers have one.
    pub fn single(
        method: &str,
        path_and_query: &str,
        host: &str,
        headers: &[(String, String)],
        body: Vec<u8>,
    ) -> Result<Mix, MixErrors> {
        let header =
            |(name, value): &(String, String)| (nowhere(name.clone()), nowhere(Template::literal(value.as_str())));
        let draft = Draft {
            name: None,
            method: nowhere(method.to_owned()),
            path: nowhere(Template::literal(path_and_query)),
            headers: headers.iter().map(header).collect(),
            body: (!body.is_empty()).then(|| Template::literal(body)),
            content_type: None,
            expect: Expect::default(),
        };
        let mut findings = Findings::default();
        match draft.entry(host, &[], &mut findings) {
            Some(entry) => Ok(Mix::new(vec![(entry, 1)], Vec::new(), Vec::new())),
            None => Err(findings.into_errors("the request", "")),
        }
    }

    /// Reads a mix from a file: HAR if its name ends in `.har` or `.json`, otherwise YAML.
    pub fn from_file(path: &Path, target: &Target) -> Result<Mix, MixErrors> {
        let origin = path.display().to_string();
        let bytes = files::read(path).map_err(|message| {
            let mut findings = Findings::default();
            findings.add(Location::Nowhere, message);
            findings.into_errors(&origin, "")
        })?;
        let text = text(&bytes, &origin)?;
        let ending = path.extension().map(|ending| ending.to_ascii_lowercase());
        match ending.as_ref().and_then(|ending| ending.to_str()) {
            Some("har" | "json") => Mix::from_har(text, path, target),
            _ => Mix::from_yaml(text, path, target),
        }
    }

    /// Reads a mix written by hand. Files it names are looked up in the folder of `origin`.
    pub fn from_yaml(text: &str, origin: &Path, target: &Target) -> Result<Mix, MixErrors> {
        yaml::read(text, origin, target)
    }

    /// Reads a mix recorded by a browser or proxy, with its requests to the target's host.
    pub fn from_har(text: &str, origin: &Path, target: &Target) -> Result<Mix, MixErrors> {
        har::read(text, origin, target)
    }

    /// Its entries.
    pub fn entries(&self) -> &[Entry] {
        &self.inner.entries
    }

    /// The weights of its entries, in the same order.
    pub fn weights(&self) -> &[u32] {
        &self.inner.weights
    }

    /// Notes for the author of the file, for example about entries that were left out.
    pub fn notes(&self) -> &[String] {
        &self.inner.notes
    }

    /// These requests, with other expectations of all answers if given: statuses (`200,301-303,4xx`), and a text
    /// that every body must contain. The error names an invalid status.
    pub fn expecting(&self, statuses: Option<&str>, body_contains: Option<&str>) -> Result<Mix, String> {
        if statuses.is_none() && body_contains.is_none() {
            return Ok(self.clone());
        }
        let statuses = statuses.map(Statuses::parse).transpose()?;
        let body = body_contains.map(|text| BodyCheck::Contains(text.as_bytes().into()));
        let Inner { entries, weights, choice, variables, notes } = &*self.inner;
        let entries = entries.iter().map(|entry| {
            let Expect { statuses: own, body: own_body } = &entry.expect;
            let expect = Expect { statuses: statuses.unwrap_or(*own), body: body.clone().or_else(|| own_body.clone()) };
            Entry { expect, ..entry.clone() }
        });
        let (entries, weights, choice) = (entries.collect(), weights.clone(), choice.clone());
        let (variables, notes) = (variables.clone(), notes.clone());
        Ok(Mix { inner: Arc::new(Inner { entries, weights, choice, variables, notes }) })
    }

    /// A mix of at least one entry.
    fn new(entries: Vec<(Entry, u32)>, variables: Vec<Variable>, notes: Vec<String>) -> Mix {
        let (entries, weights): (Vec<Entry>, Vec<u32>) = entries.into_iter().unzip();
        let choice = Choice::new(&weights);
        Mix { inner: Arc::new(Inner { entries, weights, choice, variables, notes }) }
    }
}

/// The text of a file, without a byte order mark.
fn text<'a>(bytes: &'a [u8], origin: &str) -> Result<&'a str, MixErrors> {
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    std::str::from_utf8(bytes).map_err(|error| {
        let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
        let mut findings = Findings::default();
        findings.add(Location::Byte(before.len()), "the file is not UTF-8 from here on; save it as UTF-8");
        findings.into_errors(origin, &before)
    })
}

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

fn nowhere<T>(value: T) -> Positioned<T> {
    Positioned { at: Location::Nowhere, value }
}
