//! Routes of both kinds and requests, for tests of explain.

#![allow(dead_code, clippy::unwrap_used, reason = "not every test target uses all of it")]

use expect_test::Expect;
use std::sync::Arc;
use stillgate_route::path::normalise;
use stillgate_route::{
    Expression, HostPattern, InvalidParts, Lookup, MatchRequest, Matcher, Method, PathPattern, RouteMatch, RouteSpec,
    UriRoute, Variable,
};

pub(crate) fn route(id: &str, priority: i64, uri: UriRoute) -> Arc<RouteSpec> {
    Arc::new(RouteSpec { id: id.to_owned(), priority, takes: RouteMatch::Uri(uri) })
}

pub(crate) fn uri(hosts: &[&str], paths: &[&str]) -> UriRoute {
    UriRoute {
        hosts: hosts.iter().map(|host| HostPattern::parse(host).unwrap()).collect(),
        paths: paths.iter().map(|path| PathPattern::parse(path).unwrap()).collect(),
        methods: [].into_iter().collect(),
        remote_addrs: Vec::new(),
        vars: None,
        function: None,
        invalid: InvalidParts::default(),
    }
}

pub(crate) fn expression(id: &str, priority: i64, text: &str) -> Arc<RouteSpec> {
    let takes = RouteMatch::Expression(Expression::parse(text).unwrap());
    Arc::new(RouteSpec { id: id.to_owned(), priority, takes })
}

/// A request with a query and header fields.
pub(crate) struct Head(pub(crate) Option<&'static str>, pub(crate) &'static [(&'static str, &'static str)]);

impl Lookup for Head {
    fn value<'a>(&'a self, variable: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        match variable {
            Variable::Args => self.0.map(str::as_bytes),
            Variable::ServerPort => Some(b"8080"),
            _ => None,
        }
    }

    fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.1.iter().for_each(|(name, value)| visit(name.as_bytes(), value.as_bytes()));
    }
}

pub(crate) fn ask(routes: Vec<Arc<RouteSpec>>, path: &str, head: &Head, asked: Option<&str>, expected: Expect) {
    let mut buffer = Vec::new();
    let request = MatchRequest {
        method: Method::Get,
        host: b"shop.com",
        path: normalise(path.as_bytes(), &mut buffer).unwrap(),
        client: "192.0.2.1".parse().unwrap(),
        vars: head,
    };
    expected.assert_eq(&Matcher::compile(routes).unwrap().explain(&request, asked).unwrap().to_string());
}
