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

use super::effort::Effort;
use super::expression::{Expression, ExpressionParser};
use super::value::{Scope, TemplateValue, escape_html};
use serde_json::Value as Json;
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
        let needs_lua = |what: &str| Err(format!("{what} needs Lua, which is not built"));
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
        let refusal =
            || format!("{{% {code} %}} needs Lua, which is not built; if, elseif, else, for … in ipairs and end are");
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
