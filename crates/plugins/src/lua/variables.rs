//! Names of variables as functions write them, parsed once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use stillgate_plugin::Request;
use stillgate_route::{Lookup, Variable};
use stillgate_wire::FieldValue;

/// Names that a worker keeps; when there are more, all are dropped.
const KEPT_MAX: usize = 1_024;

thread_local! {
    /// `None`: there is no such variable.
    static KEPT: RefCell<HashMap<Box<str>, Option<Rc<Variable>>>> = RefCell::default();
}

fn parsed(name: &str) -> Option<Rc<Variable>> {
    KEPT.with_borrow_mut(|kept| {
        if let Some(known) = kept.get(name) {
            return known.clone();
        }
        // OpenResty takes names of header fields as they are written in a head, too.
        let lower = name.to_ascii_lowercase().replace('-', "_");
        let spelled = if lower.starts_with("http_") { lower.as_str() } else { name };
        let variable = Variable::parse_with_body(spelled).ok().map(Rc::new);
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(name.into(), variable.clone());
        variable
    })
}

/// Appends the value of a variable; `false`: it has none, or there is none of that name.
pub(super) fn append(name: &str, of: &dyn Lookup, out: &mut Vec<u8>) -> bool {
    let Some(variable) = parsed(name) else { return false };
    let mut buffer = Vec::new();
    let value = of.value(&variable, &mut buffer);
    value.map(|value| out.extend_from_slice(value)).is_some()
}

/// nginx's variables that change what the node gets, in APISIX, and are not built.
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

/// Sets a variable that changes the request; `false`: it is none of those.
pub(super) fn set(name: &str, value: &[u8], request: &mut Request<'_>) -> Result<bool, String> {
    match name {
        "upstream_uri" => request.edits.set_target(value).map_err(|error| error.to_string())?,
        "upstream_host" => request.edits.set_host(FieldValue::new(value).map_err(|error| error.to_string())?),
        "args" => {
            let path = request.target().split(|byte| *byte == b'?').next().unwrap_or_default();
            let target = match value.is_empty() {
                true => path.to_vec(),
                false => [path, b"?", value].concat(),
            };
            request.edits.set_target(&target).map_err(|error| error.to_string())?;
        }
        name if UNBUILT.contains(&name) => {
            return Err(format!("the variable {name} cannot be set; docs/lua.md lists what can"));
        }
        _ => return Ok(false),
    }
    Ok(true)
}
