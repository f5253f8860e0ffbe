//! Names of variables in functions, parsed once.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use stillgate_plugin_api::facts::append_address;
use stillgate_plugin_api::{Facts, Request, Response};
use stillgate_route::{Lookup, Variable};
use stillgate_wire::{Edits, FieldName};

/// Most names that a worker caches; when there are more, all are dropped.
const KEPT_MAX: usize = 1_024;

thread_local! {
    /// `None`: the variable does not exist.
    static KEPT: RefCell<HashMap<Box<str>, Option<Rc<Variable>>>> = RefCell::default();
}

fn parsed(name: &str) -> Option<Rc<Variable>> {
    KEPT.with_borrow_mut(|kept| {
        if let Some(known) = kept.get(name) {
            return known.clone();
        }
        let variable = parse(&spelled(name)).map(Rc::new);
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(name.into(), variable.clone());
        variable
    })
}

/// The canonical spelling of a name: OpenResty also accepts names of header fields as they are written in a head.
pub(super) fn spelled(name: &str) -> Cow<'_, str> {
    match name.get(.."http_".len()) {
        Some(prefix) if prefix.eq_ignore_ascii_case("http_") || prefix.eq_ignore_ascii_case("http-") => {
            name.to_ascii_lowercase().replace('-', "_").into()
        }
        _ => name.into(),
    }
}

/// `None`: the variable does not exist.
pub(super) fn parse(name: &str) -> Option<Variable> {
    Variable::parse_with_body(name).ok()
}

/// `proxy_add_x_forwarded_for`: the node's `X-Forwarded-For`. `fields`: plugins' changes of the request's header;
/// `is_named`: a plugin has set the client's address.
pub(super) fn append_forwarded_for(fields: &Edits, facts: &Facts<'_>, is_named: bool, out: &mut Vec<u8>) {
    const NAME: FieldName<'static> = FieldName::constant("X-Forwarded-For");
    let peer = facts.peer.ip().to_canonical();
    if fields.is_withdrawn(NAME) || facts.trusted_proxies.iter().any(|range| range.contains(&peer)) {
        for value in fields.values(&facts.request.fields, facts.head, NAME) {
            out.extend_from_slice(value);
            out.extend_from_slice(b", ");
        }
    }
    append_address(out, if is_named { facts.client } else { peer });
}

/// The path of a target, without its query.
pub(super) fn path_of(target: &[u8]) -> &[u8] {
    target.split(|byte| *byte == b'?').next().unwrap_or_default()
}

/// The path for the node, if it was rewritten; `false`: it was not.
pub(super) fn append_rewritten(response: &Response<'_>, out: &mut Vec<u8>) -> bool {
    let mut buffer = Vec::new();
    let target = response.value(&Variable::Recorded("upstream_uri"), &mut buffer);
    let target = target.filter(|target| *target != response.facts.path_and_query());
    target.map(|target| out.extend_from_slice(path_of(target))).is_some()
}

/// Appends the value of a variable; `false`: it has none, or does not exist.
pub(super) fn append(name: &str, of: &dyn Lookup, out: &mut Vec<u8>) -> bool {
    let Some(variable) = parsed(name) else { return false };
    let mut buffer = Vec::new();
    let value = of.value(&variable, &mut buffer);
    value.map(|value| out.extend_from_slice(value)).is_some()
}

/// nginx's variables that change the request in APISIX, and are not supported.
const UNBUILT: [&str; 6] = [
    "upstream_scheme",
    "upstream_mirror_host",
    "upstream_mirror_uri",
    "upstream_cache_key",
    "upstream_cache_bypass",
    "upstream_no_cache",
];

/// Whether setting a variable changes the request, here or in APISIX.
pub(super) fn changes_request(name: &str) -> bool {
    matches!(name, "upstream_uri" | "upstream_host" | "args") || UNBUILT.contains(&name)
}

/// Sets a variable that changes the request; `false`: it does not.
pub(super) fn set(name: &str, value: &[u8], request: &mut Request<'_>) -> Result<bool, String> {
    match name {
        "upstream_uri" => request.edits.set_target(value).map_err(|error| error.to_string())?,
        "upstream_host" => request.edits.set_host(value).map_err(|error| error.to_string())?,
        "args" => {
            let path = path_of(request.target());
            let target = match value.is_empty() {
                true => path.to_vec(),
                false => [path, b"?", value].concat(),
            };
            request.replace_target(&target).map_err(|error| error.to_string())?;
        }
        name if UNBUILT.contains(&name) => {
            return Err(format!("the variable {name} cannot be set; docs/lua.md lists what can"));
        }
        _ => return Ok(false),
    }
    Ok(true)
}
