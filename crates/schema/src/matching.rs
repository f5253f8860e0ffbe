//! Kinds for the conditions of routes.
//!
//! The languages themselves (paths, hosts, conditions) belong to the `route` crate; here their errors get a position
//! in the file.

use crate::description::Definitions;
use crate::kind::{Kind, Text, report_expected, text};
use crate::text::diagnostic::{Fault, Path, Sink, shortened};
use crate::text::scalar::{Meaning, Style};
use crate::text::tree::{Node, Value};
use ipnet::IpNet;
use serde_json::{Value as Json, json};
use std::net::IpAddr;
use stillgate_route::{
    Expression, HostPattern, Method, PathPattern, Variable, parse_method,
    vars::{Expr, VarsError},
};

/// An address or a network; the bits behind the prefix are cleared.
pub const NETWORK: Text<IpNet> = text("an IP address or network", parse_network);

fn parse_network(text: &str) -> Result<IpNet, Fault> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(IpNet::from(address));
    }
    text.parse::<IpNet>().map(|network| network.trunc()).map_err(|_| {
        let fault = Fault::new(format!("expected an IP address or network, found {:?}", shortened(text)));
        fault.hint("write it like \"10.1.2.3\", \"10.0.0.0/8\" or \"fd00::/8\"")
    })
}

/// The path of a route.
pub const PATH: Text<PathPattern> =
    text("a path", |text| PathPattern::parse(text).map_err(|error| Fault::new(error.to_string()))).pattern("^(/|\\*$)");

/// The host of a route.
pub const HOST: Text<HostPattern> =
    text("a host name", |text| HostPattern::parse(text).map_err(|error| Fault::new(error.to_string())));

/// A name of a server, as clients may request it.
pub const OWN_NAME: Text<String> = text("a host name", |text| {
    if text.contains('*') {
        return Err(Fault::new(format!("{:?} stands for several names", shortened(text))).hint("write each of them"));
    }
    HostPattern::parse(text).map(|_| text.to_owned()).map_err(|error| Fault::new(error.to_string()))
});

/// A method of a route.
pub const METHOD: Text<Method> =
    text("an HTTP method", |text| parse_method(text).map_err(|error| Fault::new(error.to_string())))
        .pattern("^[A-Z]+$");

/// A variable of a request, by nginx's name.
pub fn parse_variable(name: &str) -> Result<Variable, Fault> {
    Variable::parse(name).map_err(|error| Fault::new(error.to_string()))
}

/// A variable that the access log and the metrics may use at the end of a request: the consumer is known by then.
pub fn parse_recorded(name: &str) -> Result<Variable, Fault> {
    Variable::parse_recorded(name).map_err(|error| Fault::new(error.to_string()))
}

/// The conditions of a route.
pub struct Vars;

/// Conditions of a plugin, on a request that has its route: they may use more variables.
pub struct LateVars;

/// Conditions of a plugin that waits for the body if they read it.
pub struct BodyVars;

impl Kind for BodyVars {
    type Out = Expr;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Expr> {
        read_vars(Expr::parse_with_body, node, path, sink)
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "array"})
    }
}

impl Kind for Vars {
    type Out = Expr;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Expr> {
        read_vars(Expr::parse, node, path, sink)
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "array"})
    }
}

impl Kind for LateVars {
    type Out = Expr;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Expr> {
        read_vars(Expr::parse_late, node, path, sink)
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "array"})
    }
}

/// Memory of the regexes in a condition, relative to their automata.
const CONDITION_COST: usize = 2;

fn read_vars(
    parse: fn(&Json) -> Result<Expr, VarsError>,
    node: &Node,
    path: &Path<'_>,
    sink: &mut Sink,
) -> Option<Expr> {
    if node.items().is_none() {
        report_expected("a list of conditions such as [\"arg_name\", \"==\", \"value\"]", node, path, sink);
        return None;
    }
    let value = json_of(node, path, sink)?;
    match parse(&value) {
        Ok(expr) => match sink.budget().pay(CONDITION_COST * expr.regex_bytes()) {
            Ok(()) => Some(expr),
            Err(fault) => {
                sink.error(node.at, path, fault);
                None
            }
        },
        Err(error) => {
            report_at(&error.path, node, path, Fault::new(error.message), sink);
            None
        }
    }
}

/// An expression in Kong's language.
pub struct Expressions;

impl Kind for Expressions {
    type Out = Expression;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Expression> {
        let scalar = match &node.value {
            Value::Scalar(scalar) if scalar.as_text().is_some() => scalar,
            _ => {
                report_expected("an expression such as 'http.path ^= \"/a\"'", node, path, sink);
                return None;
            }
        };
        let errors = match Expression::parse(&scalar.text) {
            Ok(expression) => return Some(expression),
            Err(errors) => errors,
        };
        for error in errors {
            let at = scalar.position(node.at, error.span.start);
            let mut fault = Fault::new(match at {
                Some(_) => error.kind.to_string(),
                // The position in the expression; its position in the file is unknown.
                None => format!("line {}, column {}: {}", error.line, error.column, error.kind),
            });
            let excerpt = error.excerpt();
            fault.hint = error.hint;
            fault.excerpt = (!excerpt.is_empty()).then_some(excerpt);
            sink.error(at.unwrap_or(node.at), path, fault);
        }
        None
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "string"})
    }
}

/// The value as JSON; numbers that JSON does not have are reported.
pub fn json_of(node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Json> {
    match &node.value {
        Value::Refused => None,
        Value::List(items) => {
            let item = |(i, item)| json_of(item, &path.index(i), sink);
            // Collected in a `Vec`, so that all items are checked even if one is invalid.
            let items: Vec<Option<Json>> = items.iter().enumerate().map(item).collect();
            items.into_iter().collect()
        }
        Value::Map(entries) => {
            let entry =
                |e: &crate::text::tree::Entry| Some((e.key.to_string(), json_of(&e.value, &path.key(&e.key), sink)?));
            let entries: Vec<Option<(String, Json)>> = entries.iter().map(entry).collect();
            entries.into_iter().collect::<Option<_>>().map(Json::Object)
        }
        Value::Scalar(scalar) if scalar.style == (Style::Substituted { quoted: true }) => Some(json!(&*scalar.text)),
        Value::Scalar(scalar) => match scalar.meaning() {
            // The variables were replaced by nothing: an empty text, not a missing value.
            Meaning::Null if scalar.style != Style::Plain => Some(json!("")),
            Meaning::Null => Some(Json::Null),
            Meaning::Bool(value) => Some(json!(value)),
            Meaning::Int(value) => Some(json!(value)),
            Meaning::Float(value) => Some(json!(value)),
            Meaning::Text(value) => Some(json!(value)),
            Meaning::HugeInt | Meaning::NotFinite => {
                let fault = Fault::new(format!("the number {} is out of range", shortened(&scalar.text)));
                sink.error(node.at, path, fault.hint("write it in quotes to compare it as text"));
                None
            }
        },
    }
}

/// Reports a fault at the item that `indices` point to.
fn report_at(indices: &[usize], node: &Node, path: &Path<'_>, fault: Fault, sink: &mut Sink) {
    if let Some((index, rest)) = indices.split_first()
        && let Value::List(items) = &node.value
        && let Some(item) = items.get(*index)
    {
        return report_at(rest, item, &path.index(*index), fault, sink);
    }
    sink.error(node.at, path, fault);
}
