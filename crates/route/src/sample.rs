//! Requests that routes were made for, derived from the routes themselves, to measure a matcher on.

use crate::condition::{Condition, Field, NumberTest, Predicate, Test};
use crate::layer::{condition_of, places_of};
use crate::matcher::Matcher;
use crate::variable::{Lookup, Variable};
use crate::{HostPattern, Method, PathPattern};

/// A request that some route is likely to take.
#[derive(Debug, Clone)]
pub struct SampleRequest {
    /// Its method.
    pub method: Method,
    /// In canonical form.
    pub host: Vec<u8>,
    /// The path as a client would send it.
    pub path: Vec<u8>,
    headers: Vec<(Box<str>, Box<[u8]>)>,
    query: Vec<u8>,
}

impl Lookup for SampleRequest {
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
            Variable::Arg(name) => {
                let pairs = self.query.split(|byte| *byte == b'&');
                pairs.filter_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")).next()
            }
            _ => None,
        }
    }

    /// A sample is matched thousands of times to measure the cost, so functions are not called.
    fn runs_functions(&self) -> bool {
        false
    }

    fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        for (name, value) in &self.headers {
            visit(name.as_bytes(), value);
        }
    }
}

impl Matcher {
    /// Up to this many requests, each for another route, from all over the list.
    pub fn samples(&self, count_max: usize) -> Vec<SampleRequest> {
        let step = self.specs.len().div_ceil(count_max.max(1)).max(1);
        let routes = self.specs.iter().step_by(step);
        let sample = |route: &std::sync::Arc<crate::RouteSpec>| {
            let mut sample = SampleRequest::new();
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

impl SampleRequest {
    fn new() -> SampleRequest {
        let headers = [("accept", "*/*"), ("user-agent", "sample/1.0"), ("accept-encoding", "gzip, br")];
        SampleRequest {
            method: Method::Get,
            host: b"www.example.com".to_vec(),
            path: b"/".to_vec(),
            headers: headers.map(|(name, value)| (name.into(), value.as_bytes().into())).to_vec(),
            query: Vec::new(),
        }
    }

    /// Gives the request the values that a condition requires, as far as that is simple.
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
            Test::Regex(pattern) => pattern.example(),
            Test::Number(test, bound) => match test {
                NumberTest::Less => (bound - 1.0).to_string().into_bytes(),
                NumberTest::Greater => (bound + 1.0).to_string().into_bytes(),
                NumberTest::Equal | NumberTest::LessOrEqual | NumberTest::GreaterOrEqual => {
                    bound.to_string().into_bytes()
                }
            },
            Test::HasElement(element) => element.as_bytes().to_vec(),
            Test::Present => b"x".to_vec(),
            Test::Methods(methods) => {
                let named = Method::NAMED.iter().find(|(method, _)| methods.admits(*method));
                self.method = named.map_or(self.method, |(method, _)| *method);
                return;
            }
            _ => return,
        };
        match &predicate.field {
            Field::Path | Field::Variable(Variable::Uri) => match predicate.test {
                // These are appended, since another predicate may require a beginning.
                Test::Suffix(_) | Test::Contains(_) => self.path.extend_from_slice(&text),
                _ if text.starts_with(b"/") => self.path = text,
                _ => self.path = [b"/", &text[..]].concat(),
            },
            Field::Host if matches!(predicate.test, Test::Suffix(_)) => self.host = [b"www", &text[..]].concat(),
            Field::Host => self.host = text,
            Field::Method => self.method = Method::from_bytes(&text),
            Field::Header(name) | Field::Variable(Variable::Header(name)) => {
                self.headers.push((name.as_str().into(), text.into()));
            }
            Field::Query(name) | Field::Variable(Variable::Arg(name)) => {
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
    let written = pattern.key().iter().chain(pattern.tail());
    written.map(|&byte| if byte >= crate::pattern::PARAM { b'x' } else { byte }).collect()
}

fn host_for(pattern: &HostPattern) -> Vec<u8> {
    let www: &[u8] = if pattern.is_suffix() { b"www" } else { b"" };
    [www, pattern.key()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Expression, MatchRequest, RouteMatch, RouteSpec, Scratch};
    use std::sync::Arc;

    #[test]
    fn samples_are_taken_by_their_routes() {
        let expressions = [
            r#"http.path ^= "/a/" && http.path =^ ".png" && http.method == "PUT""#,
            r##"http.path ~ r#"^/users/\d+$"# && http.headers.x_t contains "k""##,
            r#"http.path ~ "v[0-9]+" && http.queries.q == "1""#,
            r#"http.host =^ ".test" && (http.headers.x_a == "1" || http.headers.x_b == "2")"#,
        ];
        let spec = |(index, text): (usize, &&str)| {
            let expression = Expression::parse(text).unwrap();
            Arc::new(RouteSpec { id: format!("r{index}"), priority: 0, takes: RouteMatch::Expression(expression) })
        };
        let matcher = Matcher::compile(expressions.iter().enumerate().map(spec).collect()).unwrap();
        let samples = matcher.samples(10);
        assert_eq!(samples.len(), expressions.len());
        for (index, sample) in samples.iter().enumerate() {
            let mut buffer = Vec::new();
            let path = crate::path::normalise(&sample.path, &mut buffer).unwrap();
            let client = std::net::IpAddr::from([127, 0, 0, 1]);
            let request = MatchRequest { method: sample.method, host: &sample.host, path, client, vars: sample };
            let found = matcher.find(&request, &mut Scratch::default()).unwrap();
            assert_eq!(found.map(|found| found.route), Some(index), "{sample:?}");
        }
    }
}
