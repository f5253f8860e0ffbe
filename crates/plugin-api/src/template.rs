//! Texts with variables: `$name` and `${name}`, as APISIX resolves them.

use stillgate_route::{Lookup, Variable, VariableError};

/// A parsed text with variables. A variable that the request does not have is empty, or its default: `${name ??
/// default}`. `\$` is a literal dollar.
#[derive(Debug, Clone, PartialEq)]
pub struct Template(Box<[TemplatePart]>);

/// A part of a [`Template`].
#[derive(Debug, Clone, PartialEq)]
pub enum TemplatePart {
    /// A literal text.
    Text(Box<[u8]>),
    /// Replaced by its value.
    Variable(Variable),
    /// A variable, and its default if the request does not have it.
    WithDefault(Variable, Box<[u8]>),
}

impl TemplatePart {
    /// The variable of this part.
    pub fn variable(&self) -> Option<&Variable> {
        match self {
            TemplatePart::Variable(variable) | TemplatePart::WithDefault(variable, _) => Some(variable),
            TemplatePart::Text(_) => None,
        }
    }
}

type ParseVariable = fn(&str) -> Result<Variable, VariableError>;

/// Parses a text; the first unknown variable is an error.
fn strict(parse: impl FnOnce(&mut dyn FnMut(VariableError)) -> Template) -> Result<Template, VariableError> {
    let mut first = None;
    let template = parse(&mut |error| first = first.take().or(Some(error)));
    first.map_or(Ok(template), Err)
}

impl From<Variable> for Template {
    fn from(variable: Variable) -> Template {
        Template([TemplatePart::Variable(variable)].into())
    }
}

impl Template {
    /// Parses a text. A dollar without a name is literal.
    ///
    /// # Errors
    ///
    /// If a variable is unknown: see [`Template::parse_lenient`].
    pub fn parse(text: &str) -> Result<Template, VariableError> {
        strict(|unknown| Template::parse_lenient(text, unknown))
    }

    /// Like [`Template::parse`], for callers that wait for the body ([`crate::Plugin::each_variable`]).
    ///
    /// # Errors
    ///
    /// As of [`Template::parse`].
    pub fn parse_with_body(text: &str) -> Result<Template, VariableError> {
        strict(|unknown| Template::parse_lenient_with_body(text, unknown))
    }

    /// Parses a text in which an unknown variable is empty, as in APISIX; `unknown` is called with each.
    pub fn parse_lenient(text: &str, unknown: &mut dyn FnMut(VariableError)) -> Template {
        Template::parse_by(Variable::parse_late, text, unknown)
    }

    /// Like [`Template::parse_lenient`], for callers that wait for the body.
    pub fn parse_lenient_with_body(text: &str, unknown: &mut dyn FnMut(VariableError)) -> Template {
        Template::parse_by(Variable::parse_with_body, text, unknown)
    }

    fn parse_by(variable: ParseVariable, text: &str, unknown: &mut dyn FnMut(VariableError)) -> Template {
        let (mut parts, mut plain) = (Vec::new(), String::new());
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            let before = &rest[..at];
            let behind = &rest[at + 1..];
            if let Some(before) = before.strip_suffix('\\') {
                plain.push_str(before);
                plain.push('$');
                rest = behind;
                continue;
            }
            plain.push_str(before);
            let Some((name, default, after)) = name_of(behind) else {
                plain.push('$');
                rest = behind;
                continue;
            };
            if !plain.is_empty() {
                parts.push(TemplatePart::Text(std::mem::take(&mut plain).into_bytes().into()));
            }
            parts.extend(match (variable(name), default.map(|default| default.as_bytes().into())) {
                (Ok(variable), None) => Some(TemplatePart::Variable(variable)),
                (Ok(variable), Some(default)) => Some(TemplatePart::WithDefault(variable, default)),
                (Err(error), default) => {
                    unknown(error);
                    default.map(TemplatePart::Text)
                }
            });
            rest = after;
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(TemplatePart::Text(plain.into_bytes().into()));
        }
        Template(parts.into())
    }

    /// The text, if it has no variables.
    pub fn constant(&self) -> Option<&[u8]> {
        match &*self.0 {
            [] => Some(&[]),
            [TemplatePart::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Appends the text with the values of a request. `buffer` is for values that have to be assembled. Returns how
    /// many of its variables the request has; a default counts as a value.
    pub fn write(&self, vars: &dyn Lookup, out: &mut Vec<u8>, buffer: &mut Vec<u8>) -> usize {
        let mut present = 0;
        for part in &self.0 {
            match part {
                TemplatePart::Text(text) => out.extend_from_slice(text),
                TemplatePart::Variable(variable) => {
                    if let Some(value) = vars.value(variable, buffer) {
                        out.extend_from_slice(value);
                        present += 1;
                    }
                }
                TemplatePart::WithDefault(variable, default) => {
                    out.extend_from_slice(vars.value(variable, buffer).unwrap_or(default));
                    present += 1;
                }
            }
        }
        present
    }

    /// Its parts, for a plugin that treats values differently from the text around them.
    pub fn into_parts(self) -> Box<[TemplatePart]> {
        self.0
    }

    /// Its parts in order.
    pub fn parts(&self) -> &[TemplatePart] {
        &self.0
    }

    /// The variables in it.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.0.iter().filter_map(TemplatePart::variable)
    }
}

/// The name after a dollar, its default, and the rest.
fn name_of(text: &str) -> Option<(&str, Option<&str>, &str)> {
    if let Some(braced) = text.strip_prefix('{') {
        let (inner, after) = braced.split_once('}')?;
        let mut parts = inner.split("??").map(str::trim);
        let name = parts.next()?;
        let default = parts.next().filter(|default| !default.is_empty());
        let is_name = name.starts_with(BODY_ARG) || name.bytes().all(is_name);
        return (!name.is_empty() && is_name).then_some((name, default, after));
    }
    // A dot ends other names, so that it can end a sentence.
    let is_of_body = text.starts_with(POST_ARG);
    let is_part = |byte: u8| is_name(byte) || (is_of_body && byte == b'.');
    let end = text.bytes().position(|byte| !is_part(byte)).unwrap_or(text.len());
    let name = text[..end].trim_end_matches('.');
    (!name.is_empty()).then(|| (name, None, &text[name.len()..]))
}

/// Prefix of names of arguments in the body, whose paths have more than letters.
const POST_ARG: &str = "post_arg";
const BODY_ARG: &str = "post_arg.";

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Names;

    impl Lookup for Names {
        fn value<'a>(&'a self, variable: &Variable, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
            buffer.clear();
            buffer.extend_from_slice(format!("<{variable}>").as_bytes());
            (*variable != Variable::Args).then_some(buffer)
        }

        fn each_header(&self, _: &mut dyn FnMut(&[u8], &[u8])) {}
    }

    #[test]
    fn variables_are_put_in() {
        let check = |text: &str, expected: &str| {
            let (mut out, mut buffer) = (Vec::new(), Vec::new());
            Template::parse(text).unwrap().write(&Names, &mut out, &mut buffer);
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{text}");
        };
        check("", "");
        check("plain", "plain");
        check("$uri", "<uri>");
        check("a-${host}b$remote_addr.", "a-<host>b<remote_addr>.");
        check("[$args]", "[]");
        check("${args ?? none at all}, ${ uri??x }, ${args ??}", "none at all, <uri>, ");
        check("\\$uri costs $ 5, ${}, ${a-b}", "$uri costs $ 5, ${}, ${a-b}");
        assert!(Template::parse("$nothing_like_it").is_err());
        let mut unknown = Vec::new();
        let template = Template::parse_lenient("a$nothing/b${no ?? c}$uri", &mut |error| unknown.push(error.name));
        let (mut out, mut buffer) = (Vec::new(), Vec::new());
        assert_eq!(template.write(&Names, &mut out, &mut buffer), 1);
        assert_eq!((out.as_slice(), unknown.join(" ").as_str()), (&b"a/bc<uri>"[..], "nothing no"));
        assert_eq!(Template::parse("a\\$b").unwrap().constant(), Some(&b"a$b"[..]));
        assert_eq!(Template::parse("$uri").unwrap().constant(), None);
    }

    #[test]
    fn arguments_of_the_body_are_put_in() {
        let check = |text: &str, expected: &str| {
            let (mut out, mut buffer) = (Vec::new(), Vec::new());
            Template::parse_with_body(text).unwrap().write(&Names, &mut out, &mut buffer);
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{text}");
        };
        check("$post_arg_a.b-$post_arg.c.d.", "<post_arg_a.b>-<post_arg.c.d>.");
        check("${post_arg.a[*].b-c ?? x}$uri.a", "<post_arg.a[*].b-c><uri>.a");
        check("\\$post_arg.a", "$post_arg.a");
        for bad in ["${post_arg.a..b}", "$post_arg.", "$post_arg_", "$post_arg"] {
            assert!(Template::parse_with_body(bad).is_err(), "{bad}");
        }
        assert!(Template::parse("$post_arg.a").unwrap_err().to_string().contains("not known before the body is"));
    }
}
