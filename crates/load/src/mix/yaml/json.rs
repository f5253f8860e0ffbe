//! A JSON body written as YAML.
//!
//! A plain scalar that JSON would read as a number, `true`, `false` or `null` has that type; everything else is a
//! string. A plain `${name}` alone is a number if its variable is one. Values are escaped, so that the body stays
//! JSON.

use super::variables::Reader;
use crate::mix::template::{Escape, Piece, Template, Variable};
use serde_json::Number;
use stillgate_yaml::scalar::{Scalar, Style};
use stillgate_yaml::{Entry as Pair, Node, Value};

/// The text of the JSON value that the node means.
pub(super) fn render(node: &Node, variables: &[Variable], reader: &mut Reader<'_>) -> Template {
    let mut out = Template::default();
    push(node, variables, reader, &mut out);
    out
}

fn push(node: &Node, variables: &[Variable], reader: &mut Reader<'_>, out: &mut Template) {
    match &node.value {
        Value::Refused => {}
        Value::Scalar(_) if node.is_null() => out.push_literal(b"null"),
        Value::Scalar(Scalar { text, style: Style::Plain, .. }) if is_bare(text) => out.push_literal(text.as_bytes()),
        Value::Scalar(Scalar { text, style, .. }) => {
            string(node, text, *style == Style::Plain, variables, reader, out);
        }
        Value::List(items) => {
            out.push_literal(b"[");
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push_literal(b",");
                }
                push(item, variables, reader, out);
            }
            out.push_literal(b"]");
        }
        Value::Map(pairs) => {
            out.push_literal(b"{");
            for (index, Pair { key, value, .. }) in pairs.iter().enumerate() {
                if index > 0 {
                    out.push_literal(b",");
                }
                string(node, key, false, variables, reader, out);
                out.push_literal(b":");
                push(value, variables, reader, out);
            }
            out.push_literal(b"}");
        }
    }
}

/// Whether JSON needs no quotes around it either.
fn is_bare(text: &str) -> bool {
    matches!(text, "true" | "false") || serde_json::from_str::<Number>(text).is_ok()
}

fn string(node: &Node, text: &str, plain: bool, variables: &[Variable], reader: &mut Reader<'_>, out: &mut Template) {
    let template = match Template::parse(text, Escape::Json, variables) {
        Ok(template) => template,
        Err(message) => return reader.findings.add(node.at, message),
    };
    if let ([Piece::Variable(index, _)], true) = (template.pieces.as_slice(), plain)
        && variables[*index].source.is_number()
    {
        return out.append(&template);
    }
    out.push_literal(b"\"");
    for piece in template.pieces {
        match piece {
            Piece::Literal(literal) => {
                let mut escaped = Vec::new();
                Escape::Json.push(&mut escaped, &literal);
                out.push_literal(&escaped);
            }
            variable => out.pieces.push(variable),
        }
    }
    out.push_literal(b"\"");
}
