//! `filter_func` of routes: a function in Lua that decides last whether a route matches a request.
//!
//! As in APISIX it is written without `return`, gets `vars`, and its route matches unless it returns `nil` or `false`.
//! It sees the original request, and cannot change it, answer or wait. If it fails, that is logged and counted, and the
//! request is answered 500, as in APISIX: a client that can make it fail must not get to the next route.

use super::hosts::level_of;
use super::variables;
use serde_json::Value as Json;
use std::cell::RefCell;
use std::sync::Arc;
use stillgate_lua::{CallKind, Context, HeaderChange, Host, MessageSide, NginxLevel, Program, RunOutcome, check, run};
use stillgate_plugin_api::LogLevel;
use stillgate_route::{
    FilterFunction, FunctionDecision, FunctionMessage, Lookup, MessageLevel, RECORDED_EARLY, Variable,
};

/// Most messages that are kept for all functions of a request; failures are always kept.
const MESSAGES_MAX: usize = 64;

/// Messages of `check`, and APISIX's versions of them.
const NOT_LOADED: (&str, &str) = ("failed to loadstring: ", "failed to load 'filter_func' string: ");
const NO_FUNCTION: (&str, &str) = ("only accept Lua function", "'filter_func' should be a function");

/// Compiles the function of a route: [`stillgate_plugin_api::Scripts::filter`].
pub(crate) fn filter(text: &str, route: &str) -> Result<FilterFunction, String> {
    let source = format!("return {text}");
    check(&source).map_err(|why| match why.strip_prefix(NOT_LOADED.0) {
        Some(why) => format!("{}{why}", NOT_LOADED.1),
        None if why.starts_with(NO_FUNCTION.0) => NO_FUNCTION.1.to_owned(),
        None => why,
    })?;
    let program = Program::new(format!("route {route:?}, filter_func"), vec![source], Json::Null, CallKind::Filter);
    let decide = move |vars: &dyn Lookup, messages: &mut Vec<FunctionMessage>| {
        let mut host = OfVars { vars, target: Vec::new(), messages: RefCell::new(std::mem::take(messages)) };
        vars.value(&Variable::RequestUri, &mut Vec::new()).unwrap_or(b"/").clone_into(&mut host.target);
        let outcome = run(&program, &mut host, &mut Context::default());
        *messages = host.messages.into_inner();
        let why = match outcome {
            RunOutcome::Done(true) => return FunctionDecision::Takes,
            RunOutcome::Done(false) => return FunctionDecision::Leaves,
            RunOutcome::Failed(failure) => failure.text,
            RunOutcome::Answer { .. } | RunOutcome::Wait(..) => "it can neither answer nor wait".to_owned(),
        };
        messages.push(FunctionMessage { level: MessageLevel::Failed, text: why });
        FunctionDecision::Failed
    };
    Ok(FilterFunction { text: text.into(), decide: Arc::new(decide) })
}

/// A request for which a route is being searched.
struct OfVars<'a> {
    vars: &'a dyn Lookup,
    target: Vec<u8>,
    messages: RefCell<Vec<FunctionMessage>>,
}

const READ_ONLY: &str = "the request cannot be changed in filter_func";

impl Host for OfVars<'_> {
    fn phase(&self) -> &'static str {
        "filter_func"
    }

    fn variable(&self, name: &str, out: &mut Vec<u8>) -> Result<bool, String> {
        let is_there = variables::append(name, self.vars, out);
        match !is_there && (RECORDED_EARLY.contains(&name) || name == "proxy_add_x_forwarded_for") {
            true => Err(format!("the variable {name} is known from the phase rewrite on")),
            false => Ok(is_there),
        }
    }

    fn set_variable(&mut self, name: &str, _: &[u8]) -> Result<bool, String> {
        match variables::changes_request(name) {
            true => Err(READ_ONLY.to_owned()),
            false => Ok(false),
        }
    }

    fn each_field(&self, side: MessageSide, visit: &mut dyn FnMut(&[u8], &[u8])) {
        if side == MessageSide::Request {
            self.vars.each_header(visit);
        }
    }

    fn change_field(&mut self, _: MessageSide, _: &[u8], _: HeaderChange<'_>) -> Result<(), String> {
        Err(READ_ONLY.to_owned())
    }

    fn target(&self) -> &[u8] {
        &self.target
    }

    /// The level is checked when the messages are logged.
    fn is_logged(&self, _: NginxLevel) -> bool {
        true
    }

    fn log(&self, level: NginxLevel, text: &str) {
        let level = match level_of(level) {
            LogLevel::Error => MessageLevel::Error,
            LogLevel::Warn => MessageLevel::Warn,
            LogLevel::Info => MessageLevel::Info,
            LogLevel::Debug => MessageLevel::Debug,
        };
        let mut messages = self.messages.borrow_mut();
        if messages.len() < MESSAGES_MAX {
            messages.push(FunctionMessage { level, text: text.to_owned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty request.
    struct Empty;

    impl Lookup for Empty {
        fn value<'a>(&'a self, _: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
            None
        }

        fn each_header(&self, _: &mut dyn FnMut(&[u8], &[u8])) {}
    }

    #[test]
    fn what_is_not_known_yet_is_an_error() {
        for (name, expected) in [
            ("request_id", "the variable request_id is known from the phase rewrite on"),
            ("proxy_add_x_forwarded_for", "the variable proxy_add_x_forwarded_for is known from the phase rewrite on"),
            ("hostname", "the variable hostname is known from the phase rewrite on"),
            ("arg_a", ""),
            ("route_id", ""),
        ] {
            let filter = filter(&format!("function(vars) return vars.{name} == nil end"), "r").unwrap();
            let mut messages = Vec::new();
            let decision = if expected.is_empty() { FunctionDecision::Takes } else { FunctionDecision::Failed };
            assert_eq!((filter.decide)(&Empty, &mut messages), decision, "{name}");
            let told: Vec<&str> = messages.iter().map(|message| message.text.as_str()).collect();
            assert!(
                told.is_empty() == expected.is_empty() && told.iter().all(|told| told.contains(expected)),
                "{told:?}"
            );
        }
    }
}
