//! `real-ip`: reads the client's address from a variable, such as a header field that a balancer sets.
//!
//! From here on this address is the client's for everything: later plugins, the node, logs, metrics.

use crate::variable_texts::warn_of_unknown;
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};
use stillgate_plugin_api::{Compile, Define, Flow, Phase, Phases, Plugin, Request};
use stillgate_route::{AddressSet, Lookup, Variable};
use stillgate_schema::matching::NETWORK;
use stillgate_schema::{At, Fault, Flag, LocatedKind, Text, object, some, text};
use stillgate_wire::FieldName;

object! {
    /// Reads the client's address from a variable.
    pub(crate) struct RealIpKeys {
        /// The variable that holds the address, with or without a port, such as `http_x_real_ip` or `arg_realip`. From
        /// `http_x_forwarded_for` the last address is used, or with `recursive` the last that is not trusted.
        source: At<String> = LocatedKind(SOURCE) => required;
        /// Addresses and networks of trusted peers. Without this key all are trusted.
        trusted_addresses: Vec<IpNet> = some(NETWORK) => optional;
        /// Whether trusted addresses in `X-Forwarded-For` are skipped, from the last one on.
        recursive: bool = Flag => default(false);
    }
}

const SOURCE: Text<String> = text("the name of a variable", |text| match text.is_empty() {
    true => Err(Fault::new("an empty name")),
    false => Ok(text.to_owned()),
})
.shown();

const FORWARDED: FieldName<'static> = FieldName::constant("X-Forwarded-For");

/// The plugin.
pub(crate) struct RealIp {
    source: AddressSource,
    trusted: Option<AddressSet>,
    is_recursive: bool,
}

enum AddressSource {
    Forwarded,
    Variable(Variable),
    /// A variable that does not exist: no request has an address.
    Nothing,
}

impl Define for RealIp {
    type Keys = RealIpKeys;
    const NAME: &'static str = "real-ip";
    const PRIORITY: i32 = 23000;
    const PHASES: Phases = Phases::of(&[Phase::Rewrite]);

    fn compile(keys: RealIpKeys, cx: &mut Compile<'_>) -> Option<RealIp> {
        let source = match keys.source.value.as_str() {
            "http_x_forwarded_for" => AddressSource::Forwarded,
            name => match Variable::parse_late(name) {
                Ok(variable) => AddressSource::Variable(variable),
                Err(error) => {
                    warn_of_unknown(&error, keys.source.at, &cx.path.key("source"), cx.sink);
                    AddressSource::Nothing
                }
            },
        };
        let trusted = keys.trusted_addresses.map(|networks| AddressSet::new(&networks));
        Some(RealIp { source, trusted, is_recursive: keys.recursive })
    }
}

impl Plugin for RealIp {
    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        if self.trusted.as_ref().is_none_or(|trusted| trusted.contains(request.facts.client)) {
            let worker = request.worker;
            let found = worker.with_buffers(|value, buffer| self.find(request, value, buffer));
            if let Some((ip, port)) = found {
                request.set_client(ip, port);
            }
        }
        Flow::Continue
    }
}

impl RealIp {
    /// The address in the request; an invalid one changes nothing.
    fn find(&self, request: &Request<'_>, value: &mut Vec<u8>, buffer: &mut Vec<u8>) -> Option<(IpAddr, Option<u16>)> {
        match &self.source {
            AddressSource::Nothing => None,
            AddressSource::Variable(variable) => {
                value.extend_from_slice(request.value(variable, buffer)?);
                address(value)
            }
            AddressSource::Forwarded => self.last(request.header(FORWARDED, buffer)?),
        }
    }

    fn last(&self, list: &[u8]) -> Option<(IpAddr, Option<u16>)> {
        let mut found = None;
        for text in list.rsplit(|byte| *byte == b',') {
            let next = address(text)?;
            found = Some(next);
            let is_passed = self.is_recursive && self.trusted.as_ref().is_some_and(|set| set.contains(next.0));
            if !is_passed {
                break;
            }
        }
        found
    }
}

/// `192.0.2.7`, `192.0.2.7:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`.
fn address(text: &[u8]) -> Option<(IpAddr, Option<u16>)> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    if let Ok(address) = text.parse::<SocketAddr>() {
        return (address.port() > 0).then(|| (address.ip().to_canonical(), Some(address.port())));
    }
    let inside = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let ip: IpAddr = inside.filter(|inside| inside.contains(':')).unwrap_or(text).parse().ok()?;
    Some((ip.to_canonical(), None))
}
