//! Requests that routes were made for, derived from the routes themselves, to measure a matcher on.

use crate::condition::{Condition, Field, Predicate, Test};
use crate::layer::{condition_of, places_of};
use crate::matcher::Matcher;
use crate::variable::{Lookup, Variable};
use crate::{HostPattern, Method, PathPattern};

/// A request that some route is likely to take.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Its method.
    pub method: Method,
    /// In canonical form.
    pub host: Vec<u8>,
    /// The path as a client would send it.
    pub path: Vec<u8>,
    headers: Vec<(Box<str>, Box<[u8]>)>,
    query: Vec<u8>,
}

impl Lookup for Sample {
    fn value<'a>(&'a self, variable: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        match variable {
            Variable::Args => Some(&self.query),
            Variable::Uri => Some(&self.path),
            Variable::Host => Some(&self.host),
            Variable::Scheme => Some(b"http"),
            Variable::Header(name) => {
                let header = self.headers.iter().find(|(known, _)| **known == *name.as_str());
                header.map(|(_, value)| &**value)
            }
            _ => None,
        }
    }

    fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        for (name, value) in &self.headers {
            visit(name.as_bytes(), value);
        }
    }
}

impl Matcher {
    /// Up to so many requests, each for another route, from all over the list.
    pub fn samples(&self, count_max: usize) -> Vec<Sample> {
        let step = self.specs.len().div_ceil(count_max.max(1)).max(1);
        let routes = self.specs.iter().step_by(step);
        let sample = |route: &std::sync::Arc<crate::RouteSpec>| {
            let mut sample = Sample::new();
            if let (Some(uri), Some(place)) = (route.uri(), places_of(route).next()) {
                sample.path = path_for(&uri.paths[place.path as usize]);
                if let Some(host) = uri.hosts.first() {
                    sample.host = host_for(host);
                }
            }
            sample.satisfy(&condition_of(route));
            sample
        };
        routes.map(sample).collect()
    }
}

impl Sample {
    fn new() -> Sample {
        let headers = [("accept", "*/*"), ("user-agent", "sample/1.0"), ("accept-encoding", "gzip, br")];
        Sample {
            method: Method::Get,
            host: b"www.example.com".to_vec(),
            path: b"/".to_vec(),
            headers: headers.map(|(name, value)| (name.into(), value.as_bytes().into())).to_vec(),
            query: Vec::new(),
        }
    }

    /// Gives the request what a condition asks for, as far as that is simple.
    fn satisfy(&mut self, condition: &Condition) {
        match condition {
            Condition::True | Condition::False | Condition::Not(_) => {}
            Condition::All(all) => all.iter().for_each(|condition| self.satisfy(condition)),
            Condition::Any(any) => any.iter().take(1).for_each(|condition| self.satisfy(condition)),
            Condition::Is(predicate) => self.pass(predicate),
        }
    }

    fn pass(&mut self, predicate: &Predicate) {
        let text = match &predicate.test {
            Test::Equal(text) | Test::Prefix(text) | Test::Suffix(text) | Test::Contains(text) => text.to_vec(),
            Test::Regex(pattern) => pattern.anchored_prefix().map_or_else(Vec::new, |(prefix, _)| prefix.to_vec()),
            Test::Methods(methods) => {
                let named = Method::NAMED.iter().find(|(method, _)| methods.admits(*method));
                self.method = named.map_or(self.method, |(method, _)| *method);
                return;
            }
            _ => return,
        };
        match &predicate.field {
            Field::Path if text.starts_with(b"/") => self.path = text,
            Field::Host if matches!(predicate.test, Test::Suffix(_)) => self.host = [b"www", &text[..]].concat(),
            Field::Host => self.host = text,
            Field::Method => self.method = Method::from_bytes(&text),
            Field::Header(name) => self.headers.push((name.as_str().into(), text.into())),
            Field::Query(name) => {
                if !self.query.is_empty() {
                    self.query.push(b'&');
                }
                self.query.extend_from_slice(name.as_bytes());
                self.query.push(b'=');
                self.query.extend(text.iter().filter(|byte| !b"&#%+ ".contains(byte)));
            }
            _ => {}
        }
    }
}

fn path_for(pattern: &PathPattern) -> Vec<u8> {
    pattern.key().iter().map(|&byte| if byte >= crate::pattern::PARAM { b'x' } else { byte }).collect()
}

fn host_for(pattern: &HostPattern) -> Vec<u8> {
    let www: &[u8] = if pattern.is_suffix() { b"www" } else { b"" };
    [www, pattern.key()].concat()
}
