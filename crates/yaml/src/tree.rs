//! Parses YAML text to a tree that knows the position of every part of the text.
//!
//! The tree is built from the event stream of `saphyr-parser`, because only there can depth, aliases and duplicate keys
//! be bounded while they appear. It knows nothing of the configuration's keys. As in lyaml, which APISIX reads files
//! with, merge keys (`<<`, YAML 1.1) insert the keys of other maps, and [`crate::scalar`] defines the meaning of
//! scalars. Tags are those of the core schema; other tags and second documents are refused.

#[cfg(test)]
mod tests;

use crate::cuts::has_plain_lines;
use crate::diagnostic::{Fault, Path, Position, Sink, shortened};
use crate::environment::{Lookup, expand, expand_key};
use crate::scalar::{LayoutFinder, Meaning, Scalar, ScalarLayout, Style};
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

/// Deepest nesting of lists and maps, aliases included. Readers recurse as deep.
pub const DEPTH_MAX: usize = 32;
/// Bytes of one scalar.
pub const SCALAR_BYTES_MAX: usize = 1024 * 1024;
/// Keys, scalars, lists and maps of a file, which take about 100 bytes each while it is read.
pub const NODES_MAX: usize = 4_000_000;
/// Most nodes that all aliases of a file may add (a long scalar counts once per [`WEIGHT_BYTES`]).
pub const ALIASED_NODES_MAX: usize = 1_000_000;
const WEIGHT_BYTES: usize = 64;

/// One value and its beginning. Lists and maps are shared with their aliases.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Its beginning.
    pub at: Position,
    /// The value itself.
    pub value: Value,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A text, a number or the like.
    Scalar(Scalar),
    /// In order.
    List(Rc<[Node]>),
    /// In the order of the text.
    Map(Rc<[Entry]>),
    /// An invalid value that has been reported already, so no further error is needed.
    Refused,
}

/// One key of a map. Keys are unique within it.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its name.
    pub key: Rc<str>,
    /// The beginning of the name.
    pub key_at: Position,
    /// Its value.
    pub value: Node,
}

impl Node {
    /// The items of a list. An empty map is an empty list: Lua cannot tell them apart, and what APISIX and its clients write in one
    /// form is meant as the other.
    pub fn items(&self) -> Option<&[Node]> {
        match &self.value {
            Value::List(items) => Some(items),
            Value::Map(entries) if entries.is_empty() => Some(&[]),
            _ => None,
        }
    }

    /// The entries of a map. An empty list is an empty map, as with [`Node::items`].
    pub fn entries(&self) -> Option<&[Entry]> {
        match &self.value {
            Value::Map(entries) => Some(entries),
            Value::List(items) if items.is_empty() => Some(&[]),
            _ => None,
        }
    }

    /// A description of the value for a message, without its text: that may be a secret where a list or a map is wanted.
    pub fn type_description(&self) -> &'static str {
        match &self.value {
            Value::List(items) if items.is_empty() => "an empty list",
            Value::List(_) => "a list",
            Value::Map(entries) if entries.is_empty() => "an empty map",
            Value::Map(_) => "a map",
            Value::Refused => "an invalid value",
            Value::Scalar(scalar) => match scalar.meaning() {
                Meaning::Null => "nothing",
                Meaning::Text(_) => "a text",
                Meaning::Bool(true) => "true",
                Meaning::Bool(false) => "false",
                _ => "a number",
            },
        }
    }

    /// A description of the value for a message, which quotes a scalar.
    pub fn description(&self) -> String {
        match &self.value {
            Value::Scalar(scalar) => match scalar.meaning() {
                Meaning::Text(text) => format!("the text {:?}", shortened(text)),
                Meaning::Null => self.type_description().to_owned(),
                Meaning::Bool(_) => scalar.text.to_string(),
                _ => format!("the number {}", shortened(&scalar.text)),
            },
            _ => self.type_description().to_owned(),
        }
    }

    /// The number of keys and values from here down, as [`NODES_MAX`] counts them. Without aliases.
    pub fn count(&self) -> usize {
        match &self.value {
            Value::List(items) => 1 + items.iter().map(Node::count).sum::<usize>(),
            Value::Map(entries) => 1 + entries.iter().map(|entry| 1 + entry.value.count()).sum::<usize>(),
            Value::Scalar(_) | Value::Refused => 1,
        }
    }

    /// Whether the value is null.
    pub fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(s) if s.meaning() == Meaning::Null)
    }
}

/// A whole document.
pub struct Tree {
    /// Its value; null if the document is empty.
    pub root: Node,
    /// It has no anchors and no tags, so each part of it has its meaning without the others.
    pub is_plain: bool,
    /// The number of nodes, as [`NODES_MAX`] counts them.
    pub nodes: usize,
}

/// Parses the text's only document. `None`, with an error, if it is not YAML. `lines_before` is the number of lines
/// above the text. Without an `environment` `${NAME}` is not substituted.
pub fn parse(lines_before: u32, text: &str, environment: Option<Lookup<'_>>, sink: &mut Sink) -> Option<Tree> {
    let before = sink.errors_so_far();
    let error = match build(lines_before, text, None, environment, sink) {
        Ok(tree) => return tree,
        Err(error) => error,
    };
    let Some(widened) = IndentedText::of(text, &error) else {
        refuse(lines_before, text, None, &error, sink);
        return None;
    };
    sink.go_back_to(before);
    let tree = build(lines_before, &widened.text, Some(&widened), environment, sink);
    tree.unwrap_or_else(|error| {
        refuse(lines_before, text, Some(&widened), &error, sink);
        None
    })
}

/// Reports that a text is not YAML.
fn refuse(lines_before: u32, text: &str, widened: Option<&IndentedText>, error: &ScanError, sink: &mut Sink) {
    let Position { line, column } = position(Span::empty(*error.marker()), widened);
    let fault = Fault::new(format!("not valid YAML: {}", error.info()));
    // The most frequent mistake: the braces of a variable inside of YAML's.
    let written = text.lines().nth(line.saturating_sub(1) as usize);
    let fault = match written.is_some_and(|line| line.contains("${")) {
        true => fault.hint("inside { } and [ ] put '${NAME}' in quotes"),
        false => fault,
    };
    sink.error(Position { line: line.saturating_add(lines_before), column }, &Path::Root, fault);
}

/// The tree of a text; `widened` is the text's widened form. `Ok(None)`, with an error, if it is YAML but not a valid
/// document here.
fn build(
    lines_before: u32,
    text: &str,
    widened: Option<&IndentedText>,
    environment: Option<Lookup<'_>>,
    sink: &mut Sink,
) -> Result<Option<Tree>, ScanError> {
    let (open, anchors) = (Vec::new(), HashMap::new());
    let mut builder = Builder { environment, sink, open, anchors, nodes: 0, aliased: 0, root: None, is_plain: true };
    let mut layouts = LayoutFinder::new(text);
    let mut documents = 0;
    let position = |span| {
        let at = position(span, widened);
        Position { line: at.line.saturating_add(lines_before), ..at }
    };
    for event in Parser::<StrInput<'_>>::new_from_str(text) {
        let (event, span) = event?;
        if let Event::DocumentStart(_) = event {
            documents += 1;
            if documents > 1 {
                let fault = Fault::new("a second YAML document begins").hint("keep to one per file");
                builder.sink.error(position(span), &Path::Root, fault);
                return Ok(None);
            }
        }
        let layout = match &event {
            Event::Scalar(value, style, ..) => layouts.layout(value, *style, span),
            _ => ScalarLayout::Unknown,
        };
        if !builder.event(event, position(span), layout) {
            return Ok(None);
        }
    }
    let Builder { root, is_plain, nodes, .. } = builder;
    Ok(Some(Tree { root: root.unwrap_or_else(empty_node), is_plain: is_plain && widened.is_none(), nodes }))
}

/// The value of a text without a document.
fn empty_node() -> Node {
    let scalar = Scalar { text: "".into(), style: Style::Plain, layout: ScalarLayout::Unknown };
    Node { at: Position { line: 1, column: 1 }, value: Value::Scalar(scalar) }
}

impl Tree {
    /// Reports an error if the document is empty; `least` is a minimal document. An empty file is not accepted as one
    /// without entries: an editor may truncate a file before it writes.
    pub fn unless_empty(self, least: &str, sink: &mut Sink) -> Option<Tree> {
        if !self.root.is_null() {
            return Some(self);
        }
        let fault = Fault::new("the file is empty").hint(format!("write at least `{least}`"));
        sink.error(Position { line: 1, column: 1 }, &Path::Root, fault);
        None
    }
}

fn position(span: Span, widened: Option<&IndentedText>) -> Position {
    let clamp = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let (line, column) = (span.start.line(), span.start.col());
    let column = widened.map_or(column, |widened| widened.column(line, column));
    Position { line: clamp(line), column: clamp(column.saturating_add(1)) }
}

/// A node with the cost of walking it.
#[derive(Debug, Clone)]
struct WeighedNode {
    node: Node,
    weight: usize,
    /// Lists and maps from here down, this one included.
    height: usize,
}

struct Builder<'a> {
    environment: Option<Lookup<'a>>,
    sink: &'a mut Sink,
    open: Vec<Collection>,
    anchors: HashMap<usize, WeighedNode>,
    nodes: usize,
    aliased: usize,
    root: Option<Node>,
    is_plain: bool,
}

/// A list or map whose end has not come yet.
struct Collection {
    at: Position,
    anchor: usize,
    weight: usize,
    height: usize,
    items: Items,
}

enum Items {
    List(Vec<Node>),
    Map {
        entries: Vec<Entry>,
        /// The position of each key; filled from [`INDEXED_KEYS_MIN`] keys on.
        index: HashMap<Rc<str>, Position>,
        /// Entries of merge keys, which give way to the map's own and to earlier ones.
        merged: Vec<Entry>,
        key: NodeRole,
    },
}

/// The role of the next node of a map.
enum NodeRole {
    /// A key.
    Awaited,
    /// The value of this key.
    Read(Rc<str>, Position),
    /// The value of a merge key.
    Merge,
    /// The value of a key that was refused, and goes with it.
    Refused,
}

/// With fewer keys, searching them is faster than hashing.
const INDEXED_KEYS_MIN: usize = 16;

/// Names of YAML's own types, which a message may show.
const OTHER_TYPES: [&str; 15] = [
    "binary",
    "bool",
    "float",
    "int",
    "map",
    "merge",
    "null",
    "omap",
    "pairs",
    "seq",
    "set",
    "str",
    "timestamp",
    "value",
    "yaml",
];

impl Builder<'_> {
    /// Handles an event; returns whether to continue.
    fn event(&mut self, event: Event<'_>, at: Position, layout: ScalarLayout) -> bool {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = match self.check_tag(tag.as_deref(), at, TaggedKind::Scalar) {
                    None => Value::Refused,
                    Some(plain) => {
                        let value = self.scalar(text, plain.unwrap_or(style == ScalarStyle::Plain), layout, at);
                        self.of_type(value, tag.as_deref(), at)
                    }
                };
                let weight = match &value {
                    Value::Scalar(scalar) => 1 + scalar.text.len() / WEIGHT_BYTES,
                    _ => 1,
                };
                let node = Node { at, value };
                self.close_node(anchor, WeighedNode { node, weight, height: 0 })
            }
            Event::Alias(anchor) => self.alias(anchor, at),
            Event::SequenceStart(anchor, tag) => {
                self.check_tag(tag.as_deref(), at, TaggedKind::List);
                self.begin(at, anchor, Items::List(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                self.check_tag(tag.as_deref(), at, TaggedKind::Map);
                let (index, merged) = (HashMap::new(), Vec::new());
                let items = Items::Map { entries: Vec::new(), index, merged, key: NodeRole::Awaited };
                self.begin(at, anchor, items)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            _ => true,
        }
    }

    /// Reports a tag that has a meaning in YAML but not here. For a scalar, returns whether the tag makes it count as
    /// bare: `!!str` acts like quotes, `!!int` and the like undo them.
    fn check_tag(&mut self, tag: Option<&Tag>, at: Position, of: TaggedKind) -> Option<Option<bool>> {
        let Some(tag) = tag else { return Some(None) };
        self.is_plain = false;
        let name = if tag.is_yaml_core_schema() { tag.suffix.as_str() } else { "" };
        match (of, name) {
            (TaggedKind::Scalar, "str") => return Some(Some(false)),
            (TaggedKind::Scalar, "int" | "float" | "bool" | "null") => return Some(Some(true)),
            (TaggedKind::List, "seq") | (TaggedKind::Map, "map") => return Some(None),
            _ => {}
        }
        // A value that begins with `!` is a tag, too: it may be a password.
        let fault = match OTHER_TYPES.contains(&name) {
            true => Fault::new(format!("the tag !!{name} is not supported")).hint("remove it"),
            false => Fault::new("a tag is not supported").hint("quote a value that begins with !, or remove the tag"),
        };
        self.fault_at_value(at, fault);
        None
    }

    /// Checks that a scalar has the type that its tag names.
    fn of_type(&mut self, value: Value, tag: Option<&Tag>, at: Position) -> Value {
        let (Value::Scalar(scalar), Some(tag)) = (&value, tag) else { return value };
        let is_of_type = match (tag.suffix.as_str(), scalar.meaning()) {
            ("int", meaning) => matches!(meaning, Meaning::Int(_) | Meaning::HugeInt),
            ("float", meaning) => matches!(meaning, Meaning::Int(_) | Meaning::Float(_) | Meaning::NotFinite),
            ("bool", meaning) => matches!(meaning, Meaning::Bool(_)),
            ("null", meaning) => meaning == Meaning::Null,
            _ => true,
        };
        if is_of_type {
            return value;
        }
        let fault = Fault::new(format!("the value is not of the type !!{}", tag.suffix));
        self.fault_at_value(at, fault.hint("remove the tag"));
        Value::Refused
    }

    fn scalar(&mut self, text: Cow<'_, str>, plain: bool, layout: ScalarLayout, at: Position) -> Value {
        if text.len() > SCALAR_BYTES_MAX {
            let message = format!("a scalar of {} bytes; at most {SCALAR_BYTES_MAX} are allowed", text.len());
            self.fault_at_value(at, Fault::new(message));
            return Value::Refused;
        }
        let is_key =
            matches!(self.open.last(), Some(Collection { items: Items::Map { key: NodeRole::Awaited, .. }, .. }));
        let expanded = match self.environment {
            Some(environment) if is_key => expand_key(&text, environment),
            Some(environment) => expand(&text, environment),
            None => Ok(None),
        };
        let (text, style, layout) = match (expanded, plain) {
            (Ok(None), true) => (Rc::from(text), Style::Plain, layout),
            (Ok(None), false) => (Rc::from(text), Style::Quoted, layout),
            (Ok(Some(text)), plain) => (Rc::from(text), Style::Substituted { quoted: !plain }, ScalarLayout::Unknown),
            (Err(fault), _) => {
                self.fault_at_value(at, fault);
                return Value::Refused;
            }
        };
        Value::Scalar(Scalar { text, style, layout })
    }

    fn alias(&mut self, anchor: usize, at: Position) -> bool {
        let Some(target) = self.anchors.get(&anchor).cloned() else {
            self.fault_at_value(at, Fault::new("an alias inside of what it stands for"));
            return false;
        };
        self.aliased = self.aliased.saturating_add(target.weight);
        if self.aliased > ALIASED_NODES_MAX {
            let fault = Fault::new(format!("aliases add more than {ALIASED_NODES_MAX} nodes to the file"));
            self.fault_at_value(at, fault.hint("write the values out"));
            return false;
        }
        self.close_node(0, target)
    }

    fn begin(&mut self, at: Position, anchor: usize, items: Items) -> bool {
        self.open.push(Collection { at, anchor, weight: 1, height: 1, items });
        self.depth_allowed(self.open.len(), at)
    }

    fn depth_allowed(&mut self, depth: usize, at: Position) -> bool {
        if depth > DEPTH_MAX {
            let message = format!("more than {DEPTH_MAX} lists and maps inside one another");
            self.sink.error(at, &Path::Root, message);
        }
        depth <= DEPTH_MAX
    }

    fn end(&mut self) -> bool {
        let Some(Collection { at, anchor, weight, height, items }) = self.open.pop() else {
            return true;
        };
        let value = match items {
            Items::List(items) => Value::List(items.into()),
            Items::Map { entries, merged, .. } => Value::Map(with_merged(entries, merged).into()),
        };
        let node = Node { at, value };
        self.close_node(anchor, WeighedNode { node, weight, height })
    }

    /// Passes a complete node to the list or map around it.
    fn close_node(&mut self, anchor: usize, weighed: WeighedNode) -> bool {
        if !self.depth_allowed(self.open.len() + weighed.height, weighed.node.at) {
            return false;
        }
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            self.fault_at_value(weighed.node.at, Fault::new(format!("more than {NODES_MAX} keys and values")));
            return false;
        }
        if anchor > 0 {
            self.is_plain = false;
            self.anchors.insert(anchor, weighed.clone());
        }
        let WeighedNode { mut node, weight, height } = weighed;
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(node);
            return true;
        };
        parent.weight = parent.weight.saturating_add(weight);
        parent.height = parent.height.max(height + 1);
        match &mut parent.items {
            Items::List(items) => items.push(node),
            Items::Map { entries, index, merged, key } => match std::mem::replace(key, NodeRole::Awaited) {
                NodeRole::Awaited if is_merge_key(&node) => *key = NodeRole::Merge,
                NodeRole::Merge => {
                    self.is_plain = false;
                    if !merge(&node, merged) {
                        let fault = Fault::new(format!(
                            "expected a map or a list of maps to merge, found {}",
                            node.type_description()
                        ));
                        self.fault_at_value(node.at, fault);
                    }
                }
                NodeRole::Awaited => match new_key(node, entries, index) {
                    Ok((name, at)) => *key = NodeRole::Read(name, at),
                    Err(refused) => {
                        *key = NodeRole::Refused;
                        if let Some((at, fault)) = refused {
                            self.fault_at_value(at, fault);
                        }
                    }
                },
                NodeRole::Read(name, key_at) => {
                    if node.is_null() {
                        // An absent value has no position of its own.
                        node.at = key_at;
                    }
                    entries.push(Entry { key: name, key_at, value: node });
                }
                NodeRole::Refused => {}
            },
        }
        true
    }

    /// Reports an error about the current value; its path is that of the collections around it.
    fn fault_at_value(&mut self, at: Position, fault: Fault) {
        report(&self.open, &Path::Root, at, fault, self.sink);
    }
}

/// Reports with the path of the current value, by going down the open collections.
fn report(open: &[Collection], path: &Path<'_>, at: Position, fault: Fault, sink: &mut Sink) {
    match open.split_first() {
        None => sink.error(at, path, fault),
        Some((collection, inner)) => match &collection.items {
            Items::List(items) => report(inner, &path.index(items.len()), at, fault, sink),
            Items::Map { key: NodeRole::Read(key, _), .. } => report(inner, &path.key(key), at, fault, sink),
            Items::Map { .. } => report(&[], path, at, fault, sink),
        },
    }
}

/// The kind of node that has a tag.
#[derive(Clone, Copy)]
enum TaggedKind {
    Scalar,
    List,
    Map,
}

fn is_merge_key(node: &Node) -> bool {
    matches!(&node.value, Value::Scalar(scalar) if &*scalar.text == "<<")
}

/// Adds the keys of a map, or of a list of maps; `false` if it is neither.
fn merge(node: &Node, merged: &mut Vec<Entry>) -> bool {
    match &node.value {
        Value::Map(entries) => merged.extend(entries.iter().cloned()),
        Value::List(maps) if maps.iter().all(|map| matches!(map.value, Value::Map(_))) => {
            for map in maps.iter() {
                merge(map, merged);
            }
        }
        // The error has been reported.
        Value::Refused => {}
        _ => return false,
    }
    true
}

/// A map's own entries, and behind them the merged ones whose keys it does not have. Their number is bounded by the
/// nodes that aliases may add, and the file's own.
fn with_merged(mut entries: Vec<Entry>, merged: Vec<Entry>) -> Vec<Entry> {
    if merged.is_empty() {
        return entries;
    }
    let mut known: HashSet<Rc<str>> = entries.iter().map(|entry| entry.key.clone()).collect();
    entries.extend(merged.into_iter().filter(|entry| known.insert(entry.key.clone())));
    entries
}

type RefusedKey = Option<(Position, Fault)>;

/// The node as a key that the map does not have yet.
fn new_key(
    node: Node,
    entries: &[Entry],
    index: &mut HashMap<Rc<str>, Position>,
) -> Result<(Rc<str>, Position), RefusedKey> {
    let at = node.at;
    let name = match node.value {
        Value::Scalar(scalar) => scalar.text,
        Value::Refused => return Err(None),
        _ => return Err(Some((at, Fault::new("a key must be a scalar, not a list or map")))),
    };
    let first = if entries.len() < INDEXED_KEYS_MIN {
        entries.iter().find(|e| e.key == name).map(|e| e.key_at)
    } else {
        if index.is_empty() {
            index.extend(entries.iter().map(|e| (e.key.clone(), e.key_at)));
        }
        index.insert(name.clone(), at)
    };
    match first {
        None => Ok((name, at)),
        Some(first) => {
            // The first key keeps its place in the index.
            if !index.is_empty() {
                index.insert(name.clone(), first);
            }
            let message = format!("{:?} is listed twice, first in line {}", shortened(&name), first.line);
            Err(Some((at, Fault::new(message).hint("keep one of them"))))
        }
    }
}

// Handles flow collections whose later lines begin left of the key that they belong to, or under it.
//
// libyaml, and so APISIX, ignores indentation within `{…}` and `[…]`; YAML 1.2 and our parser require each line to be
// indented by more than its surroundings:
//
// ```text
//   plugins: {
//     cors: {}
// }
// ```
//
// In a flow collection blanks at the beginning of a line have no meaning, so a text that the parser refuses for this
// alone is parsed again with blanks inserted there, and positions are reported without them.

/// Most blanks to insert in front of a line.
const MARGIN_MAX: usize = 256;
/// Most lines of one text that may need them.
const LINES_MAX: usize = 200;
/// Bytes that may be searched to find these lines; each requires another pass from the beginning.
const BYTES_MAX: usize = 64 << 20;

/// A text with blanks inserted in front of some lines.
pub(crate) struct IndentedText {
    pub(crate) text: String,
    /// The number of blanks.
    margin: usize,
    /// From 1.
    lines: BTreeSet<usize>,
}

impl IndentedText {
    /// Widens a text in which the parser found `error`. `None` if it is another error, or there are too many of them.
    pub(crate) fn of(text: &str, error: &ScanError) -> Option<IndentedText> {
        // Lines are counted by line feeds here.
        if !has_plain_lines(text.as_bytes()) {
            return None;
        }
        let mut line = line_of(error)?;
        let margin = margin_of(text).filter(|margin| *margin <= MARGIN_MAX)?;
        let mut widened = IndentedText { text: text.to_owned(), margin, lines: BTreeSet::new() };
        for seen in (1..=LINES_MAX).map(|time| time.saturating_mul(text.len())) {
            if seen > BYTES_MAX || !widened.lines.insert(line) {
                return None;
            }
            let begin = widened.text.match_indices('\n').nth(line.checked_sub(2)?)?.0 + 1;
            widened.text.insert_str(begin, &" ".repeat(margin));
            match Parser::<StrInput<'_>>::new_from_str(&widened.text).find_map(Result::err) {
                Some(error) => match line_of(&error) {
                    Some(next) => line = next,
                    // The error will be found again, and reported.
                    None => return Some(widened),
                },
                None => return Some(widened),
            }
        }
        None
    }

    /// Converts a column of the widened text, from 0, to the original text.
    pub(crate) fn column(&self, line: usize, column: usize) -> usize {
        if self.lines.contains(&line) { column.saturating_sub(self.margin) } else { column }
    }
}

/// More than the indentation of any block of a text: a block begins behind blanks and the signs of others.
fn margin_of(text: &str) -> Option<usize> {
    text.lines().map(|line| line.bytes().take_while(|byte| b" -?:".contains(byte)).count() + 1).max()
}

/// The line that is not indented enough, if that is the error. Both messages only occur in flow collections: in a block
/// the indentation of a line defines what it belongs to.
fn line_of(error: &ScanError) -> Option<usize> {
    matches!(error.info(), "invalid indentation" | "invalid indentation in flow construct")
        .then(|| error.marker().line())
}

// A key's place in a configuration's text, for findings that are made after parsing.

/// Line and column, both from 1, of the value at a path such as `gateway.listeners[1].address`, or of the nearest value
/// above it that is in the text. `None` if the text is not a configuration.
pub fn locate(text: &[u8], environment: Lookup<'_>, path: &str) -> Option<(u32, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let tree = parse(0, text, Some(environment), &mut Sink::default()).filter(|tree| !tree.root.is_null())?;
    let Position { line, column } = within(&tree.root, path);
    Some((line, column))
}

/// Finds the place in a tree, or in the part of one in which the path begins.
pub fn within(root: &Node, path: &str) -> Position {
    let mut node = root;
    for step in path.split(['.', '[']) {
        let below = match (&node.value, step.strip_suffix(']')) {
            (Value::List(items), Some(index)) => index.parse().ok().and_then(|index: usize| items.get(index)),
            (Value::Map(entries), None) => entries.iter().find(|entry| &*entry.key == step).map(|entry| &entry.value),
            _ => None,
        };
        match below {
            Some(below) => node = below,
            None => break,
        }
    }
    node.at
}
