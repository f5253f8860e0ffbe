//! YAML text to a tree that knows where everything stands.
//!
//! Built from the events of `saphyr-parser`, because only there nesting and size are bounded while they appear and a key
//! that is there twice is seen. It knows nothing of a mix's keys. Aliases are refused: a file that fits the screen does
//! not need them, and without them no file grows while it is read.

use crate::mix::errors::{Findings, Position, quoted};
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, StrInput, Tag};
use std::borrow::Cow;
use std::collections::HashMap;

/// Lists and maps inside one another; readers recurse as deep.
pub(super) const DEPTH_MAX: usize = 32;
/// Keys, values, lists and maps of a file.
pub(super) const NODES_MAX: usize = 1_000_000;

/// One value, and where it begins.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) at: Position,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Scalar {
        text: String,
        /// Without quotes, so that it may be a number or nothing.
        plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<Pair>),
    /// Reported already; nobody needs to complain again.
    Refused,
}

/// One key of a map. Keys are unique within it.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) key: String,
    pub(super) key_at: Position,
    pub(super) value: Node,
}

impl Node {
    /// Nothing, by YAML's core schema.
    pub(super) fn is_null(&self) -> bool {
        match &self.value {
            Value::Scalar { text, plain } => *plain && matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"),
            _ => false,
        }
    }

    /// What a message says stands here.
    pub(super) fn found(&self) -> String {
        match &self.value {
            _ if self.is_null() => "nothing".to_owned(),
            Value::Scalar { text, plain: true } => quoted(text),
            Value::Scalar { text, plain: false } => format!("the text {}", quoted(text)),
            Value::List(items) if items.is_empty() => "an empty list".to_owned(),
            Value::List(_) => "a list".to_owned(),
            Value::Map(pairs) if pairs.is_empty() => "an empty map".to_owned(),
            Value::Map(_) => "a map".to_owned(),
            Value::Refused => "an invalid value".to_owned(),
        }
    }
}

/// The text's one document; `None`, with a finding, where there is none or it is no YAML.
pub(super) fn parse(text: &str, findings: &mut Findings) -> Option<Node> {
    let mut builder = Builder { findings, open: Vec::new(), nodes: 0, root: None };
    let mut documents = 0;
    for event in Parser::<StrInput<'_>>::new_from_str(text) {
        let (event, span) = match event {
            Ok(event) => event,
            Err(error) => {
                let at = position(error.marker());
                // The mistake that is made most: the braces of a variable inside of those of YAML.
                let has_variable = text.lines().nth(at.line.saturating_sub(1)).is_some_and(|line| line.contains("${"));
                let hint = if has_variable { "inside { } and [ ] put '${name}' in quotes" } else { "mend it" };
                builder.fault(at, format!("this is not YAML: {}; {hint}", error.info()));
                return None;
            }
        };
        let at = position(&span.start);
        if let Event::DocumentStart(_) = event {
            documents += 1;
            if documents > 1 {
                builder.fault(at, "a second YAML document begins; keep to one per file");
                return None;
            }
        }
        if !builder.event(event, at) {
            return None;
        }
    }
    let root = builder.root.filter(|root| !root.is_null());
    if root.is_none() {
        findings.add(Position { line: 1, column: 1 }, "the file is empty; write `requests: [{path: /}]` at least");
    }
    root
}

fn position(marker: &Marker) -> Position {
    Position { line: marker.line(), column: marker.col().saturating_add(1) }
}

struct Builder<'a> {
    findings: &'a mut Findings,
    open: Vec<Open>,
    nodes: usize,
    root: Option<Node>,
}

/// A list or map whose end has not come yet.
struct Open {
    at: Position,
    items: Items,
}

enum Items {
    List(Vec<Node>),
    Map { pairs: Vec<Pair>, lines: HashMap<String, usize>, key: Key },
}

/// What the next node of a map is.
enum Key {
    Awaited,
    /// The value of this key.
    Read(String, Position),
    /// The value of a key that was refused, and goes with it.
    Refused,
}

impl Builder<'_> {
    /// Whether to go on.
    fn event(&mut self, event: Event<'_>, at: Position) -> bool {
        match event {
            Event::Scalar(text, style, _, tag) => {
                let plain = style == ScalarStyle::Plain && tag.is_none();
                let value = match self.allows(tag, at) {
                    true => Value::Scalar { text: text.into_owned(), plain },
                    false => Value::Refused,
                };
                self.finished(Node { at, value })
            }
            Event::Alias(_) => {
                self.fault(at, "aliases (`*name`) are not read here; write the value out");
                self.finished(Node { at, value: Value::Refused })
            }
            Event::SequenceStart(_, tag) => {
                self.allows(tag, at);
                self.begin(at, Items::List(Vec::new()))
            }
            Event::MappingStart(_, tag) => {
                self.allows(tag, at);
                self.begin(at, Items::Map { pairs: Vec::new(), lines: HashMap::new(), key: Key::Awaited })
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            _ => true,
        }
    }

    /// `!!str` does what quotes do; other tags are reported.
    fn allows(&mut self, tag: Option<Cow<'_, Tag>>, at: Position) -> bool {
        let Some(tag) = tag else { return true };
        let known = tag.is_yaml_core_schema() && tag.suffix == "str";
        if !known {
            let written = if tag.is_yaml_core_schema() { format!("!!{}", tag.suffix) } else { tag.to_string() };
            self.fault(at, format!("the tag {} means nothing here; remove it", quoted(&written)));
        }
        known
    }

    fn begin(&mut self, at: Position, items: Items) -> bool {
        self.open.push(Open { at, items });
        if self.open.len() > DEPTH_MAX {
            self.fault(at, format!("more than {DEPTH_MAX} lists and maps inside one another; write it flatter"));
            return false;
        }
        true
    }

    fn end(&mut self) -> bool {
        let Some(Open { at, items }) = self.open.pop() else { return true };
        let value = match items {
            Items::List(items) => Value::List(items),
            Items::Map { pairs, .. } => Value::Map(pairs),
        };
        self.finished(Node { at, value })
    }

    /// Hands a whole node to the list or map around it.
    fn finished(&mut self, mut node: Node) -> bool {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            self.fault(node.at, format!("more than {NODES_MAX} keys and values; put lists of values into a `file`"));
            return false;
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open { items: Items::List(items), .. }) => items.push(node),
            Some(Open { items: Items::Map { pairs, lines, key }, .. }) => match std::mem::replace(key, Key::Awaited) {
                Key::Awaited => match new_key(node, lines) {
                    Ok((name, at)) => *key = Key::Read(name, at),
                    Err(refused) => {
                        *key = Key::Refused;
                        if let Some((at, message)) = refused {
                            self.fault(at, message);
                        }
                    }
                },
                Key::Read(key, key_at) => {
                    if node.is_null() {
                        // An absent value has no place of its own.
                        node.at = key_at;
                    }
                    pairs.push(Pair { key, key_at, value: node });
                }
                Key::Refused => {}
            },
        }
        true
    }

    fn fault(&mut self, at: Position, message: impl Into<String>) {
        self.findings.add(at, message);
    }
}

type RefusedKey = Option<(Position, String)>;

/// The node as a key that the map does not have yet.
fn new_key(node: Node, lines: &mut HashMap<String, usize>) -> Result<(String, Position), RefusedKey> {
    let at = node.at;
    let name = match node.value {
        Value::Scalar { text, .. } => text,
        Value::Refused => return Err(None),
        _ => return Err(Some((at, "a list or map cannot be a key; write a name".to_owned()))),
    };
    if name == "<<" {
        return Err(Some((at, "merge keys (`<<`) are not part of YAML 1.2; repeat the keys".to_owned())));
    }
    if let Some(line) = lines.get(&name) {
        return Err(Some((at, format!("{} is here twice, first in line {line}; keep one of them", quoted(&name)))));
    }
    lines.insert(name.clone(), at.line);
    Ok((name, at))
}
