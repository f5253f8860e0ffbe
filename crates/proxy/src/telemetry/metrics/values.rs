//! The values of labels, from what a worker knows of a request.
//!
//! Needed if a series is not known by its number yet, and for families with labels from variables of the request. Texts that have
//! to be built are written into reused memory.

use crate::plan::metrics::{Aspect, MetricsPlan, PlanFamily, node_label, write_text};
use stillgate_config::{Label, LabelSource, Route};
use stillgate_metrics::family::LABELS_MAX;
use stillgate_route::Lookup;
use stillgate_upstream::Endpoint;
use stillgate_wire::Method;

/// Every status as text.
const CODES: [[u8; 3]; 1000] = codes();

const fn codes() -> [[u8; 3]; 1000] {
    let mut codes = [[b'0'; 3]; 1000];
    let mut code = 0;
    while code < 1000 {
        codes[code] = [b'0' + (code / 100) as u8, b'0' + (code / 10 % 10) as u8, b'0' + (code % 10) as u8];
        code += 1;
    }
    codes
}

/// Label of methods that are not registered: a client may make up any number of them.
const OTHER: &str = "__other__";

/// Room for texts that are not stored anywhere.
#[derive(Debug, Default)]
pub(crate) struct TextRoom {
    node: String,
    uri: String,
    host: String,
}

/// The outcome of a request, apart from its route.
pub(crate) struct LabelInputs<'a> {
    /// The node that was tried last.
    pub(crate) node: Option<&'a Endpoint>,
    pub(crate) status: u16,
    /// `None`: no request could be read.
    pub(crate) method: Option<Method>,
    /// The consumer; empty if no plugin has identified one.
    pub(crate) consumer: &'a str,
    /// Whether all routes are identified by their names.
    pub(crate) named: bool,
}

/// The label values of one request.
#[derive(Debug)]
pub(crate) struct Values<'a> {
    route: &'a str,
    service: &'a str,
    node: &'a str,
    consumer: &'a str,
    uri: &'a str,
    host: &'a str,
    code: &'static [u8],
    method: &'static str,
}

impl<'a> Values<'a> {
    /// Label values of a request that a route matched by one of its paths, maybe with one of its hosts.
    pub(crate) fn new(
        metrics: &MetricsPlan,
        route: Option<(&'a Route, usize)>,
        host_index: Option<usize>,
        asked: &LabelInputs<'a>,
        texts: &'a mut TextRoom,
    ) -> Values<'a> {
        let TextRoom { node, uri, host } = texts;
        uri.clear();
        host.clear();
        if metrics.tells_match
            && let Some((route, path)) = route
            && let Some(spec) = route.spec.uri()
        {
            write_text(uri, &spec.paths[path]);
            if let Some(index) = host_index {
                write_text(host, &spec.hosts[index]);
            }
        }
        let (route, service) = route.map_or(("", None), |(route, _)| route.labels(asked.named));
        Values {
            route,
            service: service.unwrap_or_default(),
            node: asked.node.map_or("", |endpoint| node_label(endpoint, metrics.node_is_ip, node)),
            consumer: asked.consumer,
            uri,
            host,
            code: &CODES[usize::from(asked.status) % CODES.len()],
            method: asked.method.map_or("", |method| method.name().unwrap_or(OTHER)),
        }
    }

    fn of(&self, label: Label, aspect: Aspect) -> &[u8] {
        match label {
            Label::Code => self.code,
            Label::Method => self.method.as_bytes(),
            Label::Route => self.route.as_bytes(),
            Label::Service => self.service.as_bytes(),
            Label::Node => self.node.as_bytes(),
            Label::MatchedUri => self.uri.as_bytes(),
            Label::MatchedHost => self.host.as_bytes(),
            Label::Type | Label::Direction => aspect.word().as_bytes(),
            Label::Consumer => self.consumer.as_bytes(),
            // Requests do not have the other labels.
            _ => b"",
        }
    }

    /// Calls `then` with the family's label values. `buffers` has one for each variable, at least.
    pub(crate) fn with<R>(
        &self,
        family: &PlanFamily,
        aspect: Aspect,
        vars: Option<&dyn Lookup>,
        buffers: &mut [Vec<u8>],
        then: impl FnOnce(&[&[u8]]) -> R,
    ) -> R {
        let mut values: [&[u8]; LABELS_MAX] = [b""; LABELS_MAX];
        let mut buffers = buffers.iter_mut();
        for (value, source) in values.iter_mut().zip(family.sources.iter()) {
            *value = match (source, vars) {
                (LabelSource::Label(label), _) => self.of(*label, aspect),
                (LabelSource::Variable(variable), Some(vars)) => {
                    buffers.next().and_then(|buffer| vars.value(variable, buffer)).unwrap_or_default()
                }
                (LabelSource::Variable(_), None) | (LabelSource::Nothing, _) => b"",
            };
        }
        then(&values[..family.sources.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_three_digits() {
        assert_eq!((&CODES[7], &CODES[200], &CODES[499]), (b"007", b"200", b"499"));
    }
}
