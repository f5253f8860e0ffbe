//! `stillgate explain`: which route of a file takes a request, why each route before it does not, and which plugins run.
//!
//! The `route` crate explains the search itself; here the request is made from the arguments. `explanation` renders the answer.
//! Nothing is sent anywhere.

use super::cli::{EXIT_ERRORS, EXIT_GOOD, EXIT_UNUSABLE, Explain, OutputFormat};
use super::stdout::show;
use crate::configuration::source::ConfigSource;
use std::collections::HashMap;
use stillgate_proxy::Plan;
use stillgate_replay::explain::chain::consumer;
use stillgate_replay::explain::explanation::ExplainedRequest;
use stillgate_replay::explain::request_head::{RequestHead, RequestLine};

/// Runs the command; returns the exit code. A request without a route is an answer, not an error.
pub(crate) fn run(arguments: &Explain) -> u8 {
    let source = ConfigSource::File(arguments.file.clone());
    let text = match source.read() {
        Ok(text) => text,
        Err(unreadable) => {
            eprintln!("stillgate: {unreadable}");
            return EXIT_UNUSABLE;
        }
    };
    let config = match source.parse(&text) {
        Ok(loaded) => loaded.config,
        Err(errors) => {
            eprintln!("{errors}");
            return EXIT_ERRORS;
        }
    };
    if !config.gateway.config.source.is_file() {
        eprintln!(
            "stillgate: {} has no resources (gateway.config.source), so it does not say where requests go; ask the running \
             gateway with GET /v1/explain of its admin address, or explain the file of `stillgate export`",
            arguments.file.display()
        );
        return EXIT_UNUSABLE;
    }
    let plan = match Plan::build(1, &config, &HashMap::new(), None, None, None) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("{}: {error}", arguments.file.display());
            return EXIT_ERRORS;
        }
    };
    let mut head = head_of(arguments);
    if let Err(wrong) = head.set_sni(arguments.sni.as_deref()) {
        eprintln!("stillgate: --sni: {wrong}");
        return EXIT_UNUSABLE;
    }
    if let Some(flaw) = head.flaw() {
        eprintln!("stillgate: this request cannot be routed: {flaw}");
        return EXIT_UNUSABLE;
    }
    let consumer = match consumer(&config, arguments.consumer.as_deref()) {
        Ok(consumer) => consumer,
        Err(wrong) => {
            eprintln!("stillgate: --consumer: {wrong}");
            return EXIT_UNUSABLE;
        }
    };
    let answer = ExplainedRequest::new(&plan, &config, &head, arguments.route.as_deref(), consumer);
    match arguments.format {
        OutputFormat::Text => show(answer.text()),
        OutputFormat::Json => show(format_args!("{:#}\n", answer.json(true))),
    }
    EXIT_GOOD
}

/// The request as it was typed.
fn head_of(arguments: &Explain) -> RequestHead {
    let RequestLine { method, scheme, authority, target } = arguments.request.clone();
    let mut head = RequestHead { method, scheme, target, ..RequestHead::new(arguments.client.address) };
    head.authority = authority.unwrap_or_default();
    arguments.client.port.into_iter().for_each(|port| head.set_client_port(port));
    arguments.server.into_iter().for_each(|server| head.set_server(server));
    head.add_headers(arguments.headers.iter().map(|header| (header.name.clone(), header.value.clone())));
    head
}
