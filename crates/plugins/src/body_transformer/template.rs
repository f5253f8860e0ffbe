//! Templates of `body-transformer`: those of lua-resty-template, as far as they need no Lua.
//!
//! ```text
//!  {{ expression }}   the value, escaped for HTML       {* expression *}   the value as it is
//!  {# comment #}      nothing
//!
//!  expression = term { ".." term }
//!  term       = field | "text" | 'text' | _body | _ctx.var.name | _escape_json(expression) | _escape_xml(expression)
//!  field      = name { .name | ["name"] | [number] }      numbers count from 1
//! ```

use serde_json::Value as Json;
use std::borrow::Cow;
use stillgate_route::Variable;

/// A template, parsed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Template {
    parts: Vec<Part>,
    /// What `_ctx.var` asks for.
    pub(super) variables: Vec<Variable>,
}

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    Output { terms: Vec<Term>, escapes: bool },
}

#[derive(Debug, Clone, PartialEq)]
enum Term {
    Text(String),
    Body,
    /// Its place in the list.
    Variable(usize),
    Field(Vec<Step>),
    EscapeJson(Vec<Term>),
    EscapeXml(Vec<Term>),
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Name(String),
    /// From 1.
    Index(usize),
}

/// What a template is filled with.
pub(super) struct Data<'a> {
    /// The fields.
    pub(super) fields: &'a Json,
    /// The body as it came.
    pub(super) body: &'a [u8],
    /// The values of [`Template::variables`].
    pub(super) variables: &'a [Option<Vec<u8>>],
}

/// What an expression comes to.
enum Found<'a> {
    Nothing,
    Value(&'a Json),
    Bytes(Cow<'a, [u8]>),
}

impl Template {
    /// Parses a text; the error says what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Template, String> {
        let mut template = Template { parts: Vec::new(), variables: Vec::new() };
        let (mut rest, mut plain) = (text, String::new());
        while let Some(at) = rest.find('{') {
            let (before, tag) = rest.split_at(at);
            plain.push_str(before);
            let end_of = |end: &str| tag.get(2..).and_then(|inner| inner.split_once(end));
            let needs_lua = |what: &str| Err(format!("{what} needs Lua, which is not built"));
            let (escapes, found) = match tag.as_bytes().get(1) {
                Some(b'{') => (true, end_of("}}")),
                Some(b'*') => (false, end_of("*}")),
                Some(b'%') if end_of("%}").is_some() => return needs_lua("{% … %}"),
                Some(b'(') if end_of(")}").is_some() => return needs_lua("{( … )}"),
                Some(b'[') if end_of("]}").is_some() => return needs_lua("{[ … ]}"),
                Some(b'#') if end_of("#}").is_some() => {
                    let (_, after) = end_of("#}").expect("asked just now");
                    rest = after.strip_prefix('\n').unwrap_or(after);
                    continue;
                }
                _ => (false, None),
            };
            let Some((inner, after)) = found else {
                plain.push('{');
                rest = &tag[1..];
                continue;
            };
            let terms = template.expression(inner)?;
            if !plain.is_empty() {
                template.parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            template.parts.push(Part::Output { terms, escapes });
            rest = after;
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            template.parts.push(Part::Text(plain));
        }
        Ok(template)
    }

    fn expression(&mut self, text: &str) -> Result<Vec<Term>, String> {
        let mut cursor = Cursor { text: text.trim(), whole: text.trim() };
        let terms = self.terms(&mut cursor, 0)?;
        if cursor.text.is_empty() { Ok(terms) } else { Err(cursor.refusal()) }
    }

    fn terms(&mut self, cursor: &mut Cursor<'_>, depth: usize) -> Result<Vec<Term>, String> {
        /// Calls inside one another.
        const DEPTH_MAX: usize = 8;
        if depth > DEPTH_MAX {
            return Err(cursor.refusal());
        }
        let mut terms = Vec::new();
        loop {
            terms.push(self.term(cursor, depth)?);
            if !cursor.take("..") {
                return Ok(terms);
            }
        }
    }

    fn term(&mut self, cursor: &mut Cursor<'_>, depth: usize) -> Result<Term, String> {
        if let Some(text) = cursor.literal()? {
            return Ok(Term::Text(text));
        }
        let name = cursor.name().ok_or_else(|| cursor.refusal())?;
        match name {
            "_body" => Ok(Term::Body),
            "_escape_json" | "_escape_xml" if cursor.take("(") => {
                let inner = self.terms(cursor, depth + 1)?;
                if !cursor.take(")") {
                    return Err(cursor.refusal());
                }
                Ok(if name == "_escape_json" { Term::EscapeJson(inner) } else { Term::EscapeXml(inner) })
            }
            "_ctx" => match &cursor.steps()?[..] {
                [Step::Name(var), Step::Name(name)] if var == "var" => {
                    let variable = Variable::parse_late(name).map_err(|error| error.to_string())?;
                    self.variables.push(variable);
                    Ok(Term::Variable(self.variables.len() - 1))
                }
                _ => Err(cursor.refusal()),
            },
            "_multipart" | "_escape_json" | "_escape_xml" | "nil" | "true" | "false" | "not" | "function" => {
                Err(cursor.refusal())
            }
            "context" => Ok(Term::Field(cursor.steps()?)),
            name => {
                let mut steps = vec![Step::Name(name.to_owned())];
                steps.extend(cursor.steps()?);
                Ok(Term::Field(steps))
            }
        }
    }

    /// Fills the template; the error says what of it cannot be.
    pub(super) fn render(&self, data: &Data<'_>) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                Part::Output { terms, escapes } => match evaluate(terms, data)? {
                    Found::Nothing => {}
                    Found::Value(Json::String(text)) if *escapes => escape_html(text.as_bytes(), &mut out),
                    Found::Bytes(bytes) if *escapes => escape_html(&bytes, &mut out),
                    found => out.extend_from_slice(&bytes_of(found)),
                },
            }
        }
        Ok(out)
    }
}

fn evaluate<'a>(terms: &'a [Term], data: &Data<'a>) -> Result<Found<'a>, String> {
    if let [only] = terms {
        return found(only, data);
    }
    let mut joined = Vec::new();
    for term in terms {
        match found(term, data)? {
            Found::Nothing => return Err("attempt to concatenate a nil value".to_owned()),
            Found::Value(Json::Object(_) | Json::Array(_)) => {
                return Err("attempt to concatenate a table value".to_owned());
            }
            found => joined.extend_from_slice(&bytes_of(found)),
        }
    }
    Ok(Found::Bytes(Cow::Owned(joined)))
}

fn found<'a>(term: &'a Term, data: &Data<'a>) -> Result<Found<'a>, String> {
    Ok(match term {
        Term::Text(text) => Found::Bytes(Cow::Borrowed(text.as_bytes())),
        Term::Body => Found::Bytes(Cow::Borrowed(data.body)),
        Term::Variable(at) => match data.variables.get(*at) {
            Some(Some(value)) => Found::Bytes(Cow::Borrowed(value)),
            _ => Found::Nothing,
        },
        Term::Field(steps) => match field(data.fields, steps)? {
            None | Some(Json::Null) => Found::Nothing,
            Some(value) => Found::Value(value),
        },
        Term::EscapeJson(terms) => {
            let text = match evaluate(terms, data)? {
                Found::Nothing => "null".to_owned(),
                Found::Value(value) => value.to_string(),
                Found::Bytes(bytes) => Json::from(String::from_utf8_lossy(&bytes)).to_string(),
            };
            Found::Bytes(Cow::Owned(text.into_bytes()))
        }
        Term::EscapeXml(terms) => {
            let mut out = Vec::new();
            crate::xml::escape(&bytes_of(evaluate(terms, data)?), &mut out);
            Found::Bytes(Cow::Owned(out))
        }
    })
}

/// As Lua looks fields up: what nothing has, has no fields.
fn field<'a>(fields: &'a Json, steps: &[Step]) -> Result<Option<&'a Json>, String> {
    let mut value = Some(fields);
    for step in steps {
        value = match (value, step) {
            (Some(Json::Object(map)), Step::Name(name)) => map.get(name),
            (Some(Json::Array(items)), Step::Index(index)) => index.checked_sub(1).and_then(|at| items.get(at)),
            (Some(Json::Object(_) | Json::Array(_) | Json::String(_)), _) => None,
            (None | Some(_), Step::Name(name)) => return Err(format!("attempt to index a nil value at {name:?}")),
            (None | Some(_), Step::Index(index)) => return Err(format!("attempt to index a nil value at [{index}]")),
        };
    }
    Ok(value)
}

fn bytes_of(found: Found<'_>) -> Cow<'_, [u8]> {
    match found {
        Found::Nothing => Cow::Borrowed(&[]),
        Found::Bytes(bytes) => bytes,
        Found::Value(Json::String(text)) => Cow::Borrowed(text.as_bytes()),
        // Lua knows no difference between 1 and 1.0.
        Found::Value(Json::Number(number)) => {
            let text = number.to_string();
            Cow::Owned(text.strip_suffix(".0").unwrap_or(&text).as_bytes().to_vec())
        }
        Found::Value(value) => Cow::Owned(value.to_string().into_bytes()),
    }
}

fn escape_html(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        match byte {
            b'&' => out.extend_from_slice(b"&amp;"),
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            b'\'' => out.extend_from_slice(b"&#39;"),
            b'/' => out.extend_from_slice(b"&#47;"),
            other => out.push(*other),
        }
    }
}

/// An expression as far as it is not read.
struct Cursor<'a> {
    text: &'a str,
    whole: &'a str,
}

impl<'a> Cursor<'a> {
    fn refusal(&self) -> String {
        format!(
            "{:?} needs Lua, which is not built; fields, texts, \"..\", _body, _ctx.var and _escape_… are",
            self.whole
        )
    }

    fn take(&mut self, sign: &str) -> bool {
        match self.text.trim_start().strip_prefix(sign) {
            Some(rest) => {
                self.text = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn name(&mut self) -> Option<&'a str> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let text = self.text.trim_start();
        let end = text.bytes().position(|byte| !is_name(byte)).unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        if name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) {
            return None;
        }
        self.text = rest;
        Some(name)
    }

    /// A text in quotes.
    fn literal(&mut self) -> Result<Option<String>, String> {
        let text = self.text.trim_start();
        let Some(quote) = text.chars().next().filter(|first| matches!(first, '"' | '\'')) else { return Ok(None) };
        let (mut out, mut chars) = (String::new(), text[1..].char_indices());
        while let Some((at, char)) = chars.next() {
            match char {
                '\\' => match chars.next() {
                    Some((_, 'n')) => out.push('\n'),
                    Some((_, 't')) => out.push('\t'),
                    Some((_, sign @ ('\\' | '"' | '\''))) => out.push(sign),
                    _ => return Err(self.refusal()),
                },
                char if char == quote => {
                    self.text = text[at + 2..].trim_start();
                    return Ok(Some(out));
                }
                char => out.push(char),
            }
        }
        Err(self.refusal())
    }

    fn steps(&mut self) -> Result<Vec<Step>, String> {
        let mut steps = Vec::new();
        loop {
            if self.text.trim_start().starts_with("..") {
                return Ok(steps);
            }
            if self.take(".") {
                let name = self.name().ok_or_else(|| self.refusal())?;
                steps.push(Step::Name(name.to_owned()));
            } else if self.take("[") {
                steps.push(match self.literal()? {
                    Some(name) => Step::Name(name),
                    None => {
                        let end = self.text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(self.text.len());
                        let (digits, rest) = self.text.split_at(end);
                        self.text = rest;
                        Step::Index(digits.parse().map_err(|_| self.refusal())?)
                    }
                });
                if !self.take("]") {
                    return Err(self.refusal());
                }
            } else {
                self.text = self.text.trim_start();
                return Ok(steps);
            }
        }
    }
}
