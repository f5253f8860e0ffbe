//! Templates of `body-transformer`: those of lua-resty-template, as far as they need no Lua.
//!
//! ```text
//!  {{ expression }}   the value, escaped for HTML       {* expression *}   the value as it is
//!  {# comment #}      nothing
//!  {% if expression then %} … {% elseif expression then %} … {% else %} … {% end %}
//!  {% for NAME, NAME in ipairs(expression) do %} … {% end %}      for each item of a list, with its number
//! ```
//!
//! `expression` describes expressions, and `value` their values.

use super::expression::{Expression, ExpressionParser, Operator, PathStep, TemplateFunction};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::cell::Cell;
use std::cmp::Ordering;
use stillgate_plugin_api::record::written::json_string_bytes;
use stillgate_route::{Variable, VariableError};

/// A parsed template.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BodyTemplate {
    parts: Vec<BlockPart>,
    /// The variables used by `_ctx.var`.
    pub(super) variables: Vec<Variable>,
    /// Whether its running time depends on more than its length.
    pub(super) has_loops: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum BlockPart {
    Text(String),
    Output {
        value: Expression,
        escapes: bool,
    },
    /// Branches, of which the first whose condition holds is used; `else` has none.
    If(Vec<(Option<Expression>, Vec<BlockPart>)>),
    For {
        names: [String; 2],
        list: Expression,
        body: Vec<BlockPart>,
    },
}

/// The input of a template.
pub(super) struct Data<'a> {
    /// The fields.
    pub(super) fields: &'a Json,
    /// The body as it came.
    pub(super) body: &'a [u8],
    /// The values of [`BodyTemplate::variables`].
    pub(super) variables: &'a [Option<Vec<u8>>],
}

/// Most levels of nested blocks.
const BLOCKS_MAX: usize = 16;
/// Most list items that one template iterates over.
const ITEMS_MAX: usize = 100_000;
/// Most work for filling a template, for each byte of the longest output: bytes that are concatenated, compared and
/// escaped, and [`PART_COST`] for each part.
const WORK_PER_BYTE: usize = 8;
const WORK_MIN: usize = 64 * 1024 * 1024;
/// Cost of a part, in copied bytes.
const PART_COST: usize = 16;

/// A block whose end was not read yet.
enum Block {
    If { done: Vec<(Option<Expression>, Vec<BlockPart>)>, condition: Option<Expression> },
    For { names: [String; 2], list: Expression },
}

/// Parses a template: holds the parts of the open blocks, outermost first.
struct TemplateReader<'u> {
    open: Vec<(Vec<BlockPart>, Block)>,
    parts: Vec<BlockPart>,
    plain: String,
    parser: ExpressionParser<'u>,
    has_loops: bool,
}

impl BodyTemplate {
    /// Parses a text; the error says what is wrong with it. An unknown variable is nil; `unknown` is called with it.
    pub(super) fn parse(text: &str, unknown: &mut dyn FnMut(VariableError)) -> Result<BodyTemplate, String> {
        let parser = ExpressionParser::new(unknown);
        let mut reader =
            TemplateReader { open: Vec::new(), parts: Vec::new(), plain: String::new(), parser, has_loops: false };
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            let (before, tag) = rest.split_at(at);
            reader.plain.push_str(before);
            rest = match reader.tag(tag)? {
                Some(after) => after,
                None => {
                    reader.plain.push('{');
                    &tag[1..]
                }
            };
        }
        reader.plain.push_str(rest);
        reader.close_text();
        match reader.open.is_empty() {
            true => {
                let TemplateReader { parts, parser, has_loops, .. } = reader;
                Ok(BodyTemplate { parts, variables: parser.variables, has_loops })
            }
            false => Err("a block has no {% end %}".to_owned()),
        }
    }

    /// Fills the template, up to this length; the error says what is wrong.
    pub(super) fn render(&self, data: &Data<'_>, bytes_max: usize) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        let work_max = bytes_max.saturating_mul(WORK_PER_BYTE).max(WORK_MIN);
        let mut scope = Scope::new(data, ITEMS_MAX, Effort::new(bytes_max, work_max));
        render(&self.parts, &mut scope, &mut out)?;
        Ok(out)
    }
}

impl TemplateReader<'_> {
    /// Parses a tag; returns the rest, or `None` if it is not a tag.
    fn tag<'a>(&mut self, tag: &'a str) -> Result<Option<&'a str>, String> {
        let end_of = |end: &str| tag.get(2..).and_then(|inner| inner.split_once(end));
        let needs_lua = |what: &str| Err(format!("{what} needs Lua, which is not supported"));
        let (escapes, found) = match tag.as_bytes().get(1) {
            Some(b'{') => (true, end_of("}}")),
            Some(b'*') => (false, end_of("*}")),
            Some(b'%') => {
                let Some((code, after)) = end_of("%}") else { return Ok(None) };
                self.close_text();
                self.block(code.trim())?;
                return Ok(Some(after.strip_prefix('\n').unwrap_or(after)));
            }
            Some(b'(') if end_of(")}").is_some() => return needs_lua("{( … )}"),
            Some(b'[') if end_of("]}").is_some() => return needs_lua("{[ … ]}"),
            Some(b'#') => return Ok(end_of("#}").map(|(_, after)| after.strip_prefix('\n').unwrap_or(after))),
            _ => (false, None),
        };
        let Some((inner, after)) = found else { return Ok(None) };
        let value = self.parser.whole(inner)?;
        self.close_text();
        self.parts.push(BlockPart::Output { value, escapes });
        Ok(Some(after))
    }

    fn close_text(&mut self) {
        if !self.plain.is_empty() {
            self.parts.push(BlockPart::Text(std::mem::take(&mut self.plain)));
        }
    }

    fn block(&mut self, code: &str) -> Result<(), String> {
        let refusal = || {
            format!("{{% {code} %}} needs Lua, which is not supported; if, elseif, else, for … in ipairs and end are")
        };
        let between = |start: &str, end: &str| {
            let inner = code.strip_prefix(start)?.strip_suffix(end)?;
            (inner.starts_with([' ', '(']) && inner.ends_with([' ', ')'])).then_some(inner)
        };
        if let Some(condition) = between("if", "then") {
            let condition = Some(self.parser.whole(condition)?);
            return self.begin(Block::If { done: Vec::new(), condition });
        }
        if let Some(condition) = between("elseif", "then") {
            let condition = Some(self.parser.whole(condition)?);
            return self.branch(condition, refusal);
        }
        if let Some(head) = between("for", "do") {
            let (names, list) = head.split_once(" in ").ok_or_else(refusal)?;
            let (number, item) = names.split_once(',').ok_or_else(refusal)?;
            let list = list.trim().strip_prefix("ipairs").and_then(|list| list.trim().strip_prefix('('));
            let list = list.and_then(|list| list.strip_suffix(')')).ok_or_else(refusal)?;
            let list = self.parser.whole(list)?;
            let names = [number.trim(), item.trim()].map(str::to_owned);
            if !names.iter().all(|name| super::expression::is_name(name)) {
                return Err(refusal());
            }
            self.has_loops = true;
            return self.begin(Block::For { names, list });
        }
        match code {
            "else" => self.branch(None, refusal),
            "end" => self.end().ok_or_else(|| "{% end %} ends nothing".to_owned()),
            _ => Err(refusal()),
        }
    }

    fn begin(&mut self, block: Block) -> Result<(), String> {
        if self.open.len() == BLOCKS_MAX {
            return Err(format!("more than {BLOCKS_MAX} blocks inside one another"));
        }
        self.open.push((std::mem::take(&mut self.parts), block));
        Ok(())
    }

    fn branch(&mut self, next: Option<Expression>, refusal: impl Fn() -> String) -> Result<(), String> {
        match self.open.last_mut() {
            Some((_, Block::If { done, condition: condition @ Some(_) })) => {
                done.push((condition.take(), std::mem::take(&mut self.parts)));
                *condition = next;
                Ok(())
            }
            _ => Err(refusal()),
        }
    }

    fn end(&mut self) -> Option<()> {
        let (outer, block) = self.open.pop()?;
        let body = std::mem::replace(&mut self.parts, outer);
        self.parts.push(match block {
            Block::If { mut done, condition } => {
                done.push((condition, body));
                BlockPart::If(done)
            }
            Block::For { names, list } => BlockPart::For { names, list, body },
        });
        Some(())
    }
}

fn render<'a>(parts: &'a [BlockPart], scope: &mut Scope<'a>, out: &mut Vec<u8>) -> Result<(), String> {
    for part in parts {
        scope.effort.work(PART_COST)?;
        match part {
            BlockPart::Text(text) => scope.effort.append(text.as_bytes(), out)?,
            BlockPart::Output { value, escapes } => match scope.value(value)? {
                TemplateValue::Bytes(text) if *escapes => scope.effort.append_escaped(&text, escape_html, out)?,
                value => scope.effort.append(&value.into_bytes(), out)?,
            },
            BlockPart::If(branches) => {
                for (condition, body) in branches {
                    let holds = match condition {
                        Some(condition) => scope.value(condition)?.is_true(),
                        None => true,
                    };
                    if holds {
                        render(body, scope, out)?;
                        break;
                    }
                }
            }
            BlockPart::For { names, list, body } => {
                let items: &[Json] = match scope.value(list)? {
                    TemplateValue::Table(Json::Array(items)) => items,
                    // `ipairs` of a table without the item 1.
                    TemplateValue::Table(_) => &[],
                    other => return Err(format!("bad argument #1 to 'ipairs' (table expected, got {})", other.kind())),
                };
                // Like `ipairs`, it ends at the first nil.
                for (index, item) in items.iter().enumerate().take_while(|(_, item)| !item.is_null()) {
                    scope.take_item()?;
                    scope.with(names, (index + 1, item), |scope| render(body, scope, out))?;
                }
            }
        }
    }
    Ok(())
}

// Values of expressions in templates: values of Lua, with its rules of comparison, arithmetic and concatenation.

/// A value.
#[derive(Debug)]
pub(super) enum TemplateValue<'a> {
    /// Also JSON's null.
    Nil,
    Bool(bool),
    Number(f64),
    /// A number of the body, in its original form.
    Written(&'a serde_json::Number),
    Bytes(Cow<'a, [u8]>),
    /// An object or a list.
    Table(&'a Json),
}

/// The values of names.
pub(super) struct Scope<'a> {
    fields: &'a Json,
    body: &'a [u8],
    variables: &'a [Option<Vec<u8>>],
    /// Variables of loops, the innermost last.
    locals: Vec<Local<'a>>,
    /// Number of items that loops may still take.
    items_left: usize,
    pub(super) effort: Effort,
}

enum Local<'a> {
    Number(&'a str, usize),
    Item(&'a str, &'a Json),
}

impl<'a> Scope<'a> {
    pub(super) fn new(data: &Data<'a>, items_max: usize, effort: Effort) -> Scope<'a> {
        let Data { fields, body, variables } = *data;
        Scope { fields, body, variables, locals: Vec::new(), items_left: items_max, effort }
    }

    /// Counts an item of a loop.
    pub(super) fn take_item(&mut self) -> Result<(), String> {
        self.items_left = self.items_left.checked_sub(1).ok_or("the template goes through too many items")?;
        Ok(())
    }

    /// Calls `then` while the names of a loop have the values of an item and its number.
    pub(super) fn with<R>(
        &mut self,
        names: &'a [String; 2],
        (number, item): (usize, &'a Json),
        then: impl FnOnce(&mut Scope<'a>) -> R,
    ) -> R {
        self.locals.extend([Local::Number(&names[0], number), Local::Item(&names[1], item)]);
        let result = then(self);
        self.locals.truncate(self.locals.len() - 2);
        result
    }

    /// The value of an expression; the error is Lua's.
    pub(super) fn value(&self, expression: &'a Expression) -> Result<TemplateValue<'a>, String> {
        Ok(match expression {
            Expression::Nil => TemplateValue::Nil,
            Expression::Bool(value) => TemplateValue::Bool(*value),
            Expression::Number(number) => TemplateValue::Number(*number),
            Expression::Text(text) => TemplateValue::Bytes(Cow::Borrowed(text.as_bytes())),
            Expression::Body => TemplateValue::Bytes(Cow::Borrowed(self.body)),
            Expression::Variable(at) => match self.variables.get(*at) {
                Some(Some(value)) => TemplateValue::Bytes(Cow::Borrowed(value)),
                _ => TemplateValue::Nil,
            },
            Expression::Field(steps) => self.field(steps)?,
            Expression::CallOf(steps) => {
                return Err(format!("attempt to call a {} value", self.field(steps)?.kind()));
            }
            Expression::Call(function, argument) => self.call(*function, self.value(argument)?)?,
            Expression::Not(inner) => TemplateValue::Bool(!self.value(inner)?.is_true()),
            Expression::Negated(inner) => TemplateValue::Number(-self.operand(&self.value(inner)?)?),
            Expression::Length(inner) => match self.value(inner)? {
                TemplateValue::Bytes(text) => TemplateValue::Number(text.len() as f64),
                TemplateValue::Table(Json::Array(items)) => TemplateValue::Number(items.len() as f64),
                TemplateValue::Table(_) => TemplateValue::Number(0.0),
                other => return Err(format!("attempt to get length of a {} value", other.kind())),
            },
            Expression::Binary(operator, sides) => self.binary(*operator, &sides[0], &sides[1])?,
        })
    }

    fn binary(
        &self,
        operator: Operator,
        left: &'a Expression,
        right: &'a Expression,
    ) -> Result<TemplateValue<'a>, String> {
        let first = self.value(left)?;
        match operator {
            Operator::And if !first.is_true() => return Ok(first),
            Operator::Or if first.is_true() => return Ok(first),
            _ => {}
        }
        let second = self.value(right)?;
        if let (TemplateValue::Bytes(first), TemplateValue::Bytes(second)) = (&first, &second) {
            // The compared bytes.
            self.effort.work(first.len().min(second.len()))?;
        }
        let numbers = || Ok::<_, String>((self.operand(&first)?, self.operand(&second)?));
        Ok(match operator {
            Operator::And | Operator::Or => second,
            Operator::Equal => TemplateValue::Bool(first.equals(&second)),
            Operator::Different => TemplateValue::Bool(!first.equals(&second)),
            Operator::Less => TemplateValue::Bool(first.compared(&second)? == Some(Ordering::Less)),
            Operator::Greater => TemplateValue::Bool(first.compared(&second)? == Some(Ordering::Greater)),
            Operator::LessOrEqual => TemplateValue::Bool(first.compared(&second)?.is_some_and(Ordering::is_le)),
            Operator::GreaterOrEqual => TemplateValue::Bool(first.compared(&second)?.is_some_and(Ordering::is_ge)),
            Operator::Concatenate => {
                let (first, second) = (first.part()?, second.part()?);
                let mut joined = Vec::new();
                self.effort.append(&first, &mut joined)?;
                self.effort.append(&second, &mut joined)?;
                TemplateValue::Bytes(Cow::Owned(joined))
            }
            Operator::Add => numbers().map(|(a, b)| TemplateValue::Number(a + b))?,
            Operator::Subtract => numbers().map(|(a, b)| TemplateValue::Number(a - b))?,
            Operator::Multiply => numbers().map(|(a, b)| TemplateValue::Number(a * b))?,
            Operator::Divide => numbers().map(|(a, b)| TemplateValue::Number(a / b))?,
            // The result has the sign of the divisor.
            Operator::Modulo => numbers().map(|(a, b)| TemplateValue::Number(a - (a / b).floor() * b))?,
        })
    }

    /// Looks fields up like Lua: fields of a missing field are missing.
    fn field(&self, steps: &'a [PathStep]) -> Result<TemplateValue<'a>, String> {
        let mut steps = steps;
        let mut value = Some(self.fields);
        if let [PathStep::Name(first), rest @ ..] = steps {
            for local in self.locals.iter().rev() {
                match local {
                    Local::Number(name, number) if name == first && rest.is_empty() => {
                        return Ok(TemplateValue::Number(*number as f64));
                    }
                    Local::Item(name, item) if name == first => {
                        (value, steps) = (Some(*item), rest);
                        break;
                    }
                    _ => {}
                }
            }
        }
        for step in steps {
            value = match (value, step) {
                (Some(Json::Object(map)), PathStep::Name(name)) => map.get(name),
                (Some(Json::Array(items)), PathStep::Index(index)) => index.checked_sub(1).and_then(|at| items.get(at)),
                (Some(Json::Object(_) | Json::Array(_) | Json::String(_)), _) => None,
                (None | Some(_), PathStep::Name(name)) => {
                    return Err(format!("attempt to index a nil value at {name:?}"));
                }
                (None | Some(_), PathStep::Index(index)) => {
                    return Err(format!("attempt to index a nil value at [{index}]"));
                }
            };
        }
        Ok(match value {
            None | Some(Json::Null) => TemplateValue::Nil,
            Some(Json::Bool(value)) => TemplateValue::Bool(*value),
            Some(Json::Number(number)) => TemplateValue::Written(number),
            Some(Json::String(text)) => TemplateValue::Bytes(Cow::Borrowed(text.as_bytes())),
            Some(table) => TemplateValue::Table(table),
        })
    }

    fn call(&self, function: TemplateFunction, argument: TemplateValue<'a>) -> Result<TemplateValue<'a>, String> {
        let effort = &self.effort;
        let owned = |text: Vec<u8>| TemplateValue::Bytes(Cow::Owned(text));
        Ok(match function {
            TemplateFunction::EscapeJson => match argument {
                TemplateValue::Bytes(bytes) => {
                    let length = json_string_bytes(&bytes);
                    effort.check_length(length)?;
                    effort.work(length)?;
                    owned(Json::from(String::from_utf8_lossy(&bytes)).to_string().into_bytes())
                }
                TemplateValue::Nil => owned(b"null".to_vec()),
                other => self.text(other)?,
            },
            TemplateFunction::EscapeXml => {
                let mut out = Vec::new();
                effort.append_escaped(&argument.into_bytes(), crate::encoding::escape_xml, &mut out)?;
                owned(out)
            }
            TemplateFunction::ToNumber => {
                if let TemplateValue::Bytes(bytes) = &argument {
                    effort.work(bytes.len())?;
                }
                argument.number().map_or(TemplateValue::Nil, TemplateValue::Number)
            }
            TemplateFunction::ToString => match argument {
                TemplateValue::Nil => TemplateValue::Bytes(Cow::Borrowed(b"nil")),
                other => self.text(other)?,
            },
        })
    }

    /// A value for arithmetic: a text may be a number.
    fn operand(&self, value: &TemplateValue<'_>) -> Result<f64, String> {
        if let TemplateValue::Bytes(text) = value {
            self.effort.work(text.len())?;
        }
        value.operand()
    }

    /// A value as a text.
    fn text(&self, value: TemplateValue<'a>) -> Result<TemplateValue<'a>, String> {
        let text = value.into_bytes();
        self.effort.check_length(text.len())?;
        self.effort.work(text.len())?;
        Ok(TemplateValue::Bytes(text))
    }
}

impl<'a> TemplateValue<'a> {
    pub(super) fn is_true(&self) -> bool {
        !matches!(self, TemplateValue::Nil | TemplateValue::Bool(false))
    }

    /// As Lua's `type`.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            TemplateValue::Nil => "nil",
            TemplateValue::Bool(_) => "boolean",
            TemplateValue::Number(_) | TemplateValue::Written(_) => "number",
            TemplateValue::Bytes(_) => "string",
            TemplateValue::Table(_) => "table",
        }
    }

    /// Its form in the output.
    pub(super) fn into_bytes(self) -> Cow<'a, [u8]> {
        match self {
            TemplateValue::Nil => Cow::Borrowed(&[]),
            TemplateValue::Bool(value) => Cow::Borrowed(if value { b"true" } else { b"false" }),
            TemplateValue::Number(number) => Cow::Owned(written(number).into_bytes()),
            // Lua does not distinguish 1 from 1.0.
            TemplateValue::Written(number) => {
                let text = number.to_string();
                Cow::Owned(text.strip_suffix(".0").unwrap_or(&text).as_bytes().to_vec())
            }
            TemplateValue::Bytes(bytes) => bytes,
            TemplateValue::Table(json) => Cow::Owned(json.to_string().into_bytes()),
        }
    }

    /// Like `tonumber`: a text may be a number.
    fn number(&self) -> Option<f64> {
        match self {
            TemplateValue::Number(number) => Some(*number),
            TemplateValue::Written(number) => number.as_f64(),
            TemplateValue::Bytes(text) => {
                let text = std::str::from_utf8(text).ok()?.trim();
                match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
                    Some(digits) => u64::from_str_radix(digits, 16).ok().map(|number| number as f64),
                    // Words such as "inf" are not numbers.
                    None if text.ends_with(|last: char| last.is_ascii_digit() || last == '.') => text.parse().ok(),
                    None => None,
                }
            }
            TemplateValue::Nil | TemplateValue::Bool(_) | TemplateValue::Table(_) => None,
        }
    }

    fn operand(&self) -> Result<f64, String> {
        self.number().ok_or_else(|| format!("attempt to perform arithmetic on a {} value", self.kind()))
    }

    /// A text for concatenation.
    fn part(&self) -> Result<Cow<'_, [u8]>, String> {
        match self {
            TemplateValue::Number(number) => Ok(Cow::Owned(written(*number).into_bytes())),
            TemplateValue::Written(number) => Ok(TemplateValue::Written(number).into_bytes()),
            TemplateValue::Bytes(bytes) => Ok(Cow::Borrowed(bytes)),
            other => Err(format!("attempt to concatenate a {} value", other.kind())),
        }
    }

    fn equals(&self, other: &TemplateValue<'_>) -> bool {
        match (self, other) {
            (TemplateValue::Nil, TemplateValue::Nil) => true,
            (TemplateValue::Bool(a), TemplateValue::Bool(b)) => a == b,
            (TemplateValue::Bytes(a), TemplateValue::Bytes(b)) => a == b,
            (TemplateValue::Table(a), TemplateValue::Table(b)) => std::ptr::eq(*a, *b),
            (
                TemplateValue::Number(_) | TemplateValue::Written(_),
                TemplateValue::Number(_) | TemplateValue::Written(_),
            ) => self.number() == other.number(),
            _ => false,
        }
    }

    /// `None`: one is NaN.
    fn compared(&self, other: &TemplateValue<'_>) -> Result<Option<Ordering>, String> {
        match (self, other) {
            (TemplateValue::Bytes(a), TemplateValue::Bytes(b)) => Ok(Some(a.cmp(b))),
            (
                TemplateValue::Number(_) | TemplateValue::Written(_),
                TemplateValue::Number(_) | TemplateValue::Written(_),
            ) => Ok(self.number().zip(other.number()).and_then(|(a, b)| a.partial_cmp(&b))),
            _ => Err(format!("attempt to compare {} with {}", self.kind(), other.kind())),
        }
    }
}

/// A number in Lua's format: `%.14g`.
fn written(number: f64) -> String {
    const DIGITS: i32 = 14;
    if !number.is_finite() {
        return number.to_string().to_ascii_lowercase();
    }
    let scientific = format!("{number:.*e}", DIGITS as usize - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-5..DIGITS).contains(&exponent) {
        return trimmed(&format!("{number:.*}", (DIGITS - 1 - exponent) as usize));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs())
}

/// Escapes a text for HTML, as lua-resty-template does.
pub(super) fn escape_html(text: &[u8], out: &mut Vec<u8>) {
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

// Limits the output and work of filling a template: a short template can become long, and a loop can do much work
// without output.

/// The limits of one template.
pub(super) struct Effort {
    /// Longest text: of the output, and of each intermediate text.
    text_bytes_max: usize,
    work_left: Cell<usize>,
}

impl Effort {
    pub(super) fn new(text_bytes_max: usize, work_max: usize) -> Effort {
        Effort { text_bytes_max, work_left: Cell::new(work_max) }
    }

    /// Counts work on so many bytes; the error is the template's.
    pub(super) fn work(&self, bytes: usize) -> Result<(), String> {
        let left = self.work_left.get().checked_sub(bytes);
        self.work_left.set(left.ok_or("the template takes too much work")?);
        Ok(())
    }

    /// Refuses a text that is too long, before it is built.
    pub(super) fn check_length(&self, bytes: usize) -> Result<(), String> {
        match bytes <= self.text_bytes_max {
            true => Ok(()),
            false => Err(format!("the template makes more than {} bytes", self.text_bytes_max)),
        }
    }

    /// Appends to the output.
    pub(super) fn append(&self, text: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        self.check_length(out.len() + text.len())?;
        self.work(text.len())?;
        out.extend_from_slice(text);
        Ok(())
    }

    /// Appends a text that `escape` makes longer, byte by byte.
    pub(super) fn append_escaped(
        &self,
        text: &[u8],
        escape: fn(&[u8], &mut Vec<u8>),
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        const PIECE_BYTES: usize = 4096;
        for piece in text.chunks(PIECE_BYTES) {
            let before = out.len();
            escape(piece, out);
            self.check_length(out.len())?;
            self.work(out.len() - before)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_in_lua() {
        let check = |number: f64, expected: &str| assert_eq!(written(number), expected);
        check(0.0, "0");
        check(30.0, "30");
        check(-1.5, "-1.5");
        check(0.1 + 0.2, "0.3");
        check(1.0 / 3.0, "0.33333333333333");
        check(1e14, "1e+14");
        check(99_999_999_999_999.0, "99999999999999");
        check(1.5e-7, "1.5e-07");
        check(0.00012, "0.00012");
        check(f64::INFINITY, "inf");
        check(f64::NAN, "nan");
    }
}

#[cfg(test)]
mod effort_tests {
    use super::*;

    #[test]
    fn texts_and_work_are_bounded() {
        let (effort, mut out) = (Effort::new(10, 25), Vec::new());
        assert_eq!(effort.append(b"0123456", &mut out), Ok(()));
        assert!(effort.append(b"7890", &mut out).is_err_and(|why| why.contains("more than 10 bytes")));
        let doubled = |text: &[u8], out: &mut Vec<u8>| text.iter().for_each(|byte| out.extend([*byte; 2]));
        assert_eq!(effort.append_escaped(b"7", doubled, &mut out), Ok(()));
        assert!(effort.append_escaped(b"89", doubled, &mut out).is_err());
        assert_eq!(effort.work(12), Ok(()));
        assert!(effort.work(5).is_err_and(|why| why.contains("too much work")));
    }
}
