//! `stillgate explain`: which route of a file takes a request, and why not each better-placed one.
//!
//! The search itself is told by the `route` crate; here the request is made from what was typed, and what is found is
//! tied to the lines of the file and to the upstream it leads to. Nothing is sent anywhere.

use crate::cli::{EXIT_ERRORS, EXIT_GOOD, EXIT_UNUSABLE, Explain, Format, Header};
use crate::source::Source;
use crate::stdout::show;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::IpAddr;
use stillgate_config::{Config, Host, Upstream};
use stillgate_proxy::Plan;
use stillgate_route::path::{normalise, target_path};
use stillgate_route::{Candidate, Explanation, Lookup, Method, Request, Variable, Verdict, canonical_host};

/// Runs the command; returns the exit code. That no route takes the request is an answer, not an error.
pub(crate) fn run(arguments: &Explain) -> u8 {
    let source = Source::File(arguments.file.clone());
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
    let plan = match Plan::build(1, &config, &HashMap::new(), None, None) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("{}: {error}", arguments.file.display());
            return EXIT_ERRORS;
        }
    };
    let typed = Typed::new(arguments);
    let mut scratch = (Vec::new(), Vec::new());
    let path = match normalise(typed.path(), &mut scratch.0) {
        Ok(path) => path,
        Err(error) => return bad_request(&error.to_string(), arguments.format),
    };
    let request = Request {
        method: Method::from_bytes(arguments.request.method.as_bytes()),
        host: canonical_host(typed.host.as_bytes(), &mut scratch.1),
        path,
        client: arguments.client,
        vars: &typed,
    };
    match plan.matcher().explain(&request, arguments.route.as_deref()) {
        Ok(explanation) => {
            let answer = Answer { config: &config, explanation: &explanation };
            match arguments.format {
                Format::Text => show(answer.text()),
                Format::Json => show(format_args!("{:#}\n", answer.json())),
            }
            EXIT_GOOD
        }
        Err(error) => bad_request(&error.to_string(), arguments.format),
    }
}

/// A path that no route may be chosen by is answered like this by the gateway too.
fn bad_request(reason: &str, format: Format) -> u8 {
    match format {
        Format::Text => show(format_args!("no route is sought; the request is answered 400: {reason}\n")),
        Format::Json => show(format_args!("{:#}\n", json!({"status": 400, "reason": reason}))),
    }
    EXIT_GOOD
}

/// The request as it was typed, which answers for its variables.
struct Typed<'a> {
    arguments: &'a Explain,
    /// Of the URL, or else of the `Host` header; with port.
    host: String,
    normal_path: Vec<u8>,
    client: String,
}

impl<'a> Typed<'a> {
    fn new(arguments: &'a Explain) -> Typed<'a> {
        let named = |header: &&Header| header.name.eq_ignore_ascii_case("host");
        // As in an absolute-form request, the URL's host counts and not the header's (RFC 9112 section 3.2.2).
        let host = arguments
            .request
            .authority
            .clone()
            .or_else(|| arguments.headers.iter().find(named).map(|header| header.value.clone()))
            .unwrap_or_default();
        let (path, _) = target_path(arguments.request.target.as_bytes());
        let mut scratch = Vec::new();
        let normal_path = match normalise(path, &mut scratch) {
            Ok(path) => path.bytes().to_vec(),
            Err(_) => Vec::new(),
        };
        Typed { arguments, host, normal_path, client: arguments.client.to_string() }
    }

    fn path(&self) -> &[u8] {
        target_path(self.arguments.request.target.as_bytes()).0
    }

    fn query(&self) -> Option<&[u8]> {
        target_path(self.arguments.request.target.as_bytes()).1
    }

    fn argument(&self, name: &str) -> Option<&[u8]> {
        self.query()?.split(|&byte| byte == b'&').find_map(|pair| {
            let (key, value) = split_once(pair, b'=');
            (key == name.as_bytes()).then_some(value)
        })
    }

    fn header<'b>(
        &'b self,
        matches: impl Fn(&[u8]) -> bool,
        separator: &[u8],
        buffer: &'b mut Vec<u8>,
    ) -> Option<&'b [u8]> {
        buffer.clear();
        let mut found = false;
        for header in &self.arguments.headers {
            if matches(header.name.as_bytes()) {
                if found {
                    buffer.extend_from_slice(separator);
                }
                buffer.extend_from_slice(header.value.as_bytes());
                found = true;
            }
        }
        found.then_some(buffer)
    }

    fn cookie<'b>(&'b self, name: &str, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        let is_cookie = |field: &[u8]| field.eq_ignore_ascii_case(b"cookie");
        let cookies = self.header(is_cookie, b"; ", buffer)?;
        cookies.split(|&byte| byte == b';').find_map(|pair| {
            let (key, value) = split_once(pair.trim_ascii(), b'=');
            (key == name.as_bytes()).then_some(value)
        })
    }
}

impl Lookup for Typed<'_> {
    fn value<'b>(&'b self, variable: &Variable, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        let request = &self.arguments.request;
        match variable {
            Variable::Uri => Some(&self.normal_path),
            Variable::RequestUri => Some(request.target.as_bytes()),
            Variable::Args => self.query(),
            Variable::IsArgs => Some(match self.query() {
                Some(query) if !query.is_empty() => b"?",
                _ => b"",
            }),
            Variable::Host => Some(canonical_host(self.host.as_bytes(), buffer)),
            Variable::RequestMethod => Some(request.method.as_bytes()),
            Variable::Scheme => Some(request.scheme.as_bytes()),
            Variable::ServerProtocol => Some(b"HTTP/1.1"),
            Variable::RemoteAddr | Variable::PeerAddr => Some(self.client.as_bytes()),
            // Of a connection that is not there.
            Variable::RemotePort | Variable::ServerAddr | Variable::ServerPort | Variable::SslServerName => None,
            Variable::Arg(name) => self.argument(name),
            Variable::Header(name) if name.as_str() == "host" => match self.host.is_empty() {
                true => None,
                false => Some(self.host.as_bytes()),
            },
            Variable::Header(name) => self.header(|field| name.matches(field), b", ", buffer),
            Variable::Cookie(name) => self.cookie(name, buffer),
            // The matcher knows these itself.
            Variable::PathParam(_) => None,
        }
    }
}

fn split_once(text: &[u8], separator: u8) -> (&[u8], &[u8]) {
    match text.iter().position(|&byte| byte == separator) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, b""),
    }
}

/// An explanation with the file it is about.
struct Answer<'a> {
    config: &'a Config,
    explanation: &'a Explanation,
}

impl Answer<'_> {
    fn line_of(&self, candidate: &Candidate) -> usize {
        self.config.routes[candidate.route].line
    }

    fn upstream_of(&self, candidate: &Candidate) -> &Upstream {
        &self.config.upstreams[self.config.routes[candidate.route].upstream]
    }

    fn text(&self) -> String {
        let told = |candidate: &Candidate| {
            let host = candidate.host.as_deref().unwrap_or("any host");
            format!("{:?} (line {}; {host}, {})", candidate.id, self.line_of(candidate), candidate.path)
        };
        let mut out = String::new();
        match &self.explanation.chosen {
            Some(chosen) => {
                let upstream = self.upstream_of(chosen);
                out.push_str(&format!("route {} takes the request\n", told(chosen)));
                for (name, value) in &self.explanation.params {
                    out.push_str(&format!("  {name} = {value:?}\n"));
                }
                out.push_str(&format!("it goes to upstream {:?}: {}\n", upstream.key, nodes(upstream).join(", ")));
            }
            None => out.push_str("no route takes the request; it is answered 404\n"),
        }
        if !self.explanation.ruled_out.is_empty() {
            out.push_str("better placed, but ruled out:\n");
        }
        for (candidate, reason) in &self.explanation.ruled_out {
            out.push_str(&format!("  {}: {reason}\n", told(candidate)));
        }
        if let Some((id, verdict)) = &self.explanation.asked {
            out.push_str(&format!("route {id:?} {}\n", verdict_text(verdict)));
        }
        out
    }

    fn json(&self) -> Value {
        let told = |candidate: &Candidate| {
            json!({
                "id": candidate.id,
                "line": self.line_of(candidate),
                "host": candidate.host,
                "path": candidate.path,
            })
        };
        let params: serde_json::Map<String, Value> =
            self.explanation.params.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let ruled_out: Vec<Value> = self
            .explanation
            .ruled_out
            .iter()
            .map(|(candidate, reason)| json!({"route": told(candidate), "reason": reason}))
            .collect();
        json!({
            "status": self.explanation.chosen.is_none().then_some(404),
            "route": self.explanation.chosen.as_ref().map(told),
            "params": params,
            "upstream": self.explanation.chosen.as_ref().map(|chosen| {
                let upstream = self.upstream_of(chosen);
                json!({"id": upstream.key, "nodes": nodes(upstream)})
            }),
            "ruled_out": ruled_out,
            "asked": self.explanation.asked.as_ref().map(|(id, verdict)| {
                json!({"id": id, "verdict": verdict_text(verdict)})
            }),
        })
    }
}

fn verdict_text(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Unknown => "does not exist, or has `status: 0`".to_owned(),
        Verdict::Chosen => "takes the request".to_owned(),
        Verdict::Host(why) | Verdict::Path(why) | Verdict::RuledOut(why) => {
            format!("cannot take it: {why}")
        }
        Verdict::Later(why) => format!("could take it, but comes later: {why}"),
    }
}

/// The nodes that can be chosen, as `host:port`.
fn nodes(upstream: &Upstream) -> Vec<String> {
    let usable = upstream.nodes.iter().filter(|node| node.weight > 0);
    let named: Vec<String> = usable
        .map(|node| match &node.host {
            Host::Ip(IpAddr::V6(ip)) => format!("[{ip}]:{}", node.port),
            Host::Ip(IpAddr::V4(ip)) => format!("{ip}:{}", node.port),
            Host::Name(name) => format!("{name}:{}", node.port),
        })
        .collect();
    match named.is_empty() {
        true => vec!["no node; it is answered 503".to_owned()],
        false => named,
    }
}
