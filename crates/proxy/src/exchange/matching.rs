//! The phase `match`: which route a request takes.

use super::answer::LocalReply;
use super::facts::facts_of;
use super::{Exchange, RequestContext, chain};
use crate::worker::Worker;
use stillgate_plugin_api::{Facts, LogLevel};
use stillgate_route::path::{normalise, target_path};
use stillgate_route::{FunctionMessage, Match, MessageLevel};
use stillgate_wire::{Method, TargetForm};

/// Finds the route. If there is none, global rules run before the answer.
pub(super) fn select(serving: &mut RequestContext<'_>) -> Result<(), LocalReply> {
    match serving.exchange.request.form {
        TargetForm::Authority => return Err(LocalReply::closing(405, "CONNECT is not served here")),
        // The request is about the server as a whole (RFC 9110 section 9.3.7): it has no path to route by.
        TargetForm::Asterisk => return Err(LocalReply::no_route()),
        TargetForm::Origin | TargetForm::Absolute => {}
    }
    // A node that answers it sends back what other hops have added: nginx refuses it, too (RFC 9110 section 9.3.8).
    if serving.exchange.request.method == Method::Trace {
        return Err(LocalReply::error(405, "TRACE is not served here"));
    }
    let found = find(serving)?;
    serving.exchange.outcome.route = found;
    serving.route = found.map(|found| &serving.snapshot.plan.routes[found.route]);
    chain::begin(serving);
    Ok(())
}

/// Runs the matcher, unless the request is answered or refused before it.
fn find(serving: &mut RequestContext<'_>) -> Result<Option<Match>, LocalReply> {
    let RequestContext { worker, client, exchange, snapshot, .. } = serving;
    exchange.is_matched_by_header = snapshot.plan.matches_headers;
    let Exchange { request, from_client, known, matching, .. } = &mut **exchange;
    let facts = facts_of(known, request, from_client.head(), client, &snapshot.plan, None);
    let raw_path = target_path(facts.path_and_query()).0;
    if let Some(answer) = worker.challenges().http(request.method, raw_path) {
        return Err(LocalReply::challenge(answer));
    }
    let Some(asked) = facts.as_asked(&facts) else { return Err(no_path(&facts)) };
    if let (Some(tls), Some(of_client)) = (&snapshot.plan.tls, &client.tls)
        && !of_client.may_ask_for(tls, facts.host, worker.clock.now_unix_ms())
    {
        let why = match of_client.has_expired(worker.clock.now_unix_ms()) {
            true => "the client's certificate has expired; renew it and connect again",
            false => "a certificate is asked for that was not shown; connect by the host's own name",
        };
        return Err(LocalReply::error(421, why));
    }
    let found = worker.routes.borrow_mut().find(&snapshot.plan, &asked, matching, &worker.counters);
    if matching.has_messages() {
        log_messages(matching.take_messages(), worker);
    }
    let found = found.map_err(|error| LocalReply::error(400, error.to_string()))?;
    // No other route answers in its place: a client that makes the function fail would pass its plugins.
    if found.is_some_and(|found| snapshot.plan.matcher().has_failed_function(found, matching)) {
        return Err(LocalReply::error(500, "the filter_func of a route failed"));
    }
    Ok(found)
}

/// Logs the messages of functions of routes.
#[cold]
fn log_messages(messages: Vec<FunctionMessage>, worker: &Worker) {
    const WHO: &str = "filter_func";
    let io = worker.plugins.own.io();
    for FunctionMessage { level, text } in messages {
        let level = match level {
            MessageLevel::Failed => {
                io.fail(WHO, &text);
                continue;
            }
            MessageLevel::Error => LogLevel::Error,
            MessageLevel::Warn => LogLevel::Warn,
            MessageLevel::Info => LogLevel::Info,
            MessageLevel::Debug => LogLevel::Debug,
        };
        io.log(WHO, level, &text);
    }
}

/// The path has no normal form: determines the reason again.
#[cold]
fn no_path(facts: &Facts<'_>) -> LocalReply {
    let mut scratch = Vec::new();
    let why = normalise(target_path(facts.path_and_query()).0, &mut scratch).err();
    LocalReply::error(400, why.map_or_else(String::new, |error| error.to_string()))
}
