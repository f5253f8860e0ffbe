//! Maps with fixed keys, each defined once.
//!
//! `object!` takes a table of keys (documentation, name, type, kind, behaviour if absent) and makes from it the struct,
//! the reader with its check for unknown keys, and the description for the schema and the reference. Rejected: serde's
//! derive, which stops at the first error and knows neither positions nor schemas.

use crate::description::{Definitions, KeyDescription};
use crate::kind::{Kind, alternatives, report_expected};
use crate::text::diagnostic::{Fault, HIDDEN, Path, Position, Sink, shortened};
use crate::text::tree::{Entry, Node, Value};
use serde_json::Value as Json;
use std::marker::PhantomData;

/// Implemented by `object!`.
pub trait Object: Sized {
    /// Its name in the schema.
    const NAME: &'static str;

    /// Its documentation.
    const DOC: &'static str;

    /// Whether APISIX refuses unknown keys, too, where a plugin has the object (`additionalProperties: false`).
    const IS_CLOSED: bool;

    /// Whether the value of one of its keys is a secret.
    const HOLDS_SECRETS: bool = false;

    /// All its keys that can be used, without those of its parts.
    const KEYS: &'static [&'static str];

    /// Sets of keys of which at least one is required.
    const NEEDS: &'static [&'static [&'static str]];

    /// `at` is the position of the map, for missing keys.
    fn read_entries(entries: &[Entry], at: Position, path: &Path<'_>, sink: &mut Sink) -> Option<Self>;

    /// Whether it has a key, even one that is not implemented.
    fn has_key(key: &str) -> bool;

    /// All its keys, in the order of the table.
    fn describe(definitions: &mut Definitions) -> Vec<KeyDescription>;
}

/// Keys of APISIX for features that do not exist here.
pub struct Foreign {
    /// The keys.
    pub keys: &'static [&'static str],
    /// The missing feature.
    pub what: &'static str,
    /// A suggestion.
    pub hint: &'static str,
}

impl Foreign {
    /// For an object without them.
    pub const NONE: Foreign = Foreign { keys: &[], what: "", hint: "" };
}

/// The kind of an object.
pub struct Map<T>(PhantomData<T>);

/// An object of this type.
pub const fn map<T: Object>() -> Map<T> {
    Map(PhantomData)
}

impl<T: Object> Kind for Map<T> {
    type Out = T;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<T> {
        // A whole document is not an empty list.
        let is_document = matches!((&node.value, path), (Value::List(_), Path::Root));
        if let Some(entries) = node.entries().filter(|_| !is_document) {
            return T::read_entries(entries, node.at, path, sink);
        }
        // A key without a value, perhaps because all of it is commented out, is an empty map.
        if node.is_null() {
            return T::read_entries(&[], node.at, path, sink);
        }
        report_expected("a map", node, path, sink);
        None
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        definitions.object::<T>()
    }
}

/// An object with no keys written; `None` if it has a required key.
pub fn unwritten<T: Object>() -> Option<T> {
    T::read_entries(&[], Position::NOWHERE, &Path::Root, &mut Sink::default())
}

/// The key's name for a field: without the `r#` that keywords need.
pub const fn key_name(field: &'static str) -> &'static str {
    match field.as_bytes() {
        [b'r', b'#', ..] => field.split_at(2).1,
        _ => field,
    }
}

/// Whether a type is `Secret`, or a list of that or the like.
pub const fn is_secret_type(name: &str) -> bool {
    let mut rest = name.as_bytes();
    while let [_, behind @ ..] = rest {
        match rest {
            [b'S', b'e', b'c', b'r', b'e', b't'] => return true,
            [b'S', b'e', b'c', b'r', b'e', b't', next, ..] if !next.is_ascii_alphanumeric() => return true,
            _ => rest = behind,
        }
    }
    false
}

/// What an object does with keys that it does not have.
#[derive(Debug, Clone, Copy)]
pub struct UnknownKeys {
    /// Whether they are refused even in what other programs write.
    pub is_closed: bool,
    /// Whether the name may be a secret: that of a key and its value in the wrong order.
    pub holds_secrets: bool,
}

/// The longest name of an unknown key that is shown beside secrets.
const SHOWN_NAME_BYTES_MAX: usize = 24;

/// Whether a name beside secrets is shown: most are misspelt. Keys that protect something are longer, or have digits.
fn is_shown_name(name: &str) -> bool {
    name.len() <= SHOWN_NAME_BYTES_MAX && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'_' | b'-'))
}

/// Reports a key that the object does not have.
pub fn refuse_key(
    entry: &Entry,
    known: &[&[&'static str]],
    unbuilt: &[(&'static str, &'static str)],
    foreign: &Foreign,
    rule: UnknownKeys,
    path: &Path<'_>,
    sink: &mut Sink,
) {
    let key = &*entry.key;
    // Its value has been reported.
    if entry.value.value == Value::Refused {
        return;
    }
    if foreign.keys.contains(&key) {
        if !asks_for_nothing(&entry.value) {
            sink.foreign(entry.key_at, path, Fault::new(foreign.what).hint(foreign.hint));
        }
        return;
    }
    if let Some((_, what)) = unbuilt.iter().find(|(name, _)| *name == key) {
        if !asks_for_nothing(&entry.value) {
            let fault = Fault::new(format!("{what} not supported yet")).hint("remove the key");
            sink.error(entry.key_at, path, fault);
        }
        return;
    }
    let known = known.concat();
    let names = known.iter().copied().chain(unbuilt.iter().map(|(name, _)| *name));
    let guess = sink.guess(Fault::new(""), key, names).hint;
    let is_hidden = (rule.holds_secrets || sink.is_hiding()) && guess.is_none() && !is_shown_name(key);
    let hint = guess.unwrap_or_else(|| format!("known keys: {}", known.join(", ")));
    let (fault, path) = match path {
        Path::Key(parent, _) if is_hidden => (Fault::new("unknown key"), parent.key(HIDDEN)),
        path => (Fault::new(format!("unknown key {:?}", shortened(key))), *path),
    };
    match rule.is_closed {
        true => sink.error(entry.key_at, &path, fault.hint(hint)),
        false => sink.foreign(entry.key_at, &path, fault.hint(hint)),
    }
}

/// Whether a value leaves its feature switched off.
fn asks_for_nothing(node: &Node) -> bool {
    match &node.value {
        Value::List(items) => items.is_empty(),
        Value::Map(entries) => entries.is_empty(),
        Value::Scalar(scalar) => matches!(&*scalar.text, "" | "~" | "null" | "false"),
        Value::Refused => true,
    }
}

/// Reports a missing required key.
pub fn report_missing_key(key: &str, at: Position, path: &Path<'_>, sink: &mut Sink) {
    sink.error(at, path, Fault::new(format!("the key {key:?} is missing")).hint("add it"));
}

/// Reports that none of a set of keys is present.
pub fn report_missing_any(
    keys: &[&str],
    without: &str,
    entries: &[Entry],
    at: Position,
    path: &Path<'_>,
    sink: &mut Sink,
) {
    if !entries.iter().any(|entry| keys.contains(&&*entry.key)) {
        let hint = format!("add {}", alternatives(keys.iter().copied()));
        sink.error(at, path, Fault::new(without).hint(hint));
    }
}

/// Makes a struct from a table of keys. Behind each key's kind is the behaviour if it is absent:
///
/// - `default(VALUE)`: this value;
/// - `optional`: `None`, and the field is an `Option`;
/// - `expected`: an error, and the field is an `Option` so that the rest of the object can still be checked;
/// - `required`: an error, and no object is made;
/// - `nested`: the same as an empty map.
///
/// A value that cannot be read counts as absent, without a second error. `any_of` names keys of which one is required,
/// and the effect if none is present. `unbuilt` names keys that are known but not implemented; they are refused unless
/// empty. `foreign` are keys of APISIX for features that do not exist here; a file must not have them. `parts` are
/// objects whose keys are next to the object's own. `closed: true` is for objects of plugins in which APISIX allows no
/// other keys.
#[macro_export]
macro_rules! object {
    (@field optional $ty:ty) => { Option<$ty> };
    (@field expected $ty:ty) => { Option<$ty> };
    (@field $presence:ident $ty:ty) => { $ty };

    (@value optional $slot:ident $key:expr, $kind:expr, $at:expr, $path:expr, $sink:expr) => { $slot.flatten() };
    (@value default($default:expr) $slot:ident $key:expr, $kind:expr, $at:expr, $path:expr, $sink:expr) => {
        $slot.flatten().unwrap_or_else(|| $default)
    };
    (@value expected $slot:ident $key:expr, $kind:expr, $at:expr, $path:expr, $sink:expr) => {{
        if $slot.is_none() {
            $crate::object::report_missing_key($key, $at, $path, $sink);
        }
        $slot.flatten()
    }};
    (@value required $slot:ident $key:expr, $kind:expr, $at:expr, $path:expr, $sink:expr) => {{
        if $slot.is_none() {
            $crate::object::report_missing_key($key, $at, $path, $sink);
        }
        $slot.flatten()?
    }};
    (@value nested $slot:ident $key:expr, $kind:expr, $at:expr, $path:expr, $sink:expr) => {
        match $slot {
            Some(value) => value,
            None => {
                let empty = $crate::text::tree::Value::Map(std::rc::Rc::from([]));
                let node = $crate::text::tree::Node { at: $at, value: empty };
                $crate::kind::read(&$kind, &node, &$path.key($key), $sink)
            }
        }?
    };

    (@foreign) => { &$crate::object::Foreign::NONE };
    (@foreign $foreign:expr) => { &$foreign };

    (@presence default($default:expr) $kind:expr) => {
        $crate::description::Presence::Default($crate::kind::Kind::show(&$kind, &$default))
    };
    (@presence expected $kind:expr) => { $crate::description::Presence::Required };
    (@presence required $kind:expr) => { $crate::description::Presence::Required };
    (@presence $presence:ident $kind:expr) => { $crate::description::Presence::Optional };

    (
        $(#[doc = $doc:literal])+
        $vis:vis struct $name:ident $(: $($derive:ident),+)? {
            $(
                $(#[doc = $key_doc:literal])+
                $key:ident: $ty:ty = $kind:expr => $presence:ident $(($default:expr))?;
            )*
            $(parts { $($(#[doc = $part_doc:literal])+ $part:ident: $part_ty:ty;)* })?
            $(any_of { $($without:literal: $($one:ident)|+;)+ })?
            $(unbuilt { $($unbuilt:ident: $what:literal;)* })?
            $(foreign: $foreign:expr;)?
            $(closed: $closed:literal;)?
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, PartialEq, $($($derive),+)?)]
        $vis struct $name {
            $($(#[doc = $key_doc])+ $vis $key: $crate::object!(@field $presence $ty),)*
            $($($(#[doc = $part_doc])+ $vis $part: $part_ty,)*)?
        }

        impl $crate::object::Object for $name {
            const NAME: &'static str = stringify!($name);
            const DOC: &'static str = concat!($($doc, "\n"),+);
            const KEYS: &'static [&'static str] = &[$($crate::object::key_name(stringify!($key))),*];
            const IS_CLOSED: bool = false $(|| $closed)?;
            const HOLDS_SECRETS: bool = false $(|| $crate::object::is_secret_type(stringify!($ty)))*;
            const NEEDS: &'static [&'static [&'static str]] =
                &[$($(&[$($crate::object::key_name(stringify!($one))),+]),+)?];

            fn has_key(key: &str) -> bool {
                const UNBUILT: &[&str] = &[$($($crate::object::key_name(stringify!($unbuilt))),*)?];
                Self::KEYS.contains(&key)
                    || UNBUILT.contains(&key)
                    $($(|| <$part_ty as $crate::object::Object>::has_key(key))*)?
            }

            // `at` is for required keys; not every object has some.
            #[allow(unused_variables)]
            fn read_entries(
                entries: &[$crate::text::tree::Entry],
                at: $crate::text::diagnostic::Position,
                path: &$crate::text::diagnostic::Path<'_>,
                sink: &mut $crate::text::diagnostic::Sink,
            ) -> Option<Self> {
                use $crate::object::key_name;
                // Outer `None`: absent. Inner `None`: present but not readable, which has been reported.
                $(let mut $key: Option<Option<$ty>> = None;)*
                $($(let mut $part: Vec<$crate::text::tree::Entry> = Vec::new();)*)?
                for entry in entries {
                    let path = path.key(&entry.key);
                    $(
                        if &*entry.key == const { key_name(stringify!($key)) } {
                            $key = Some($crate::kind::read(&$kind, &entry.value, &path, sink));
                            continue;
                        }
                    )*
                    $($(
                        if <$part_ty as $crate::object::Object>::has_key(&entry.key) {
                            $part.push(entry.clone());
                            continue;
                        }
                    )*)?
                    $crate::object::refuse_key(
                        entry,
                        &[Self::KEYS, $($(<$part_ty as $crate::object::Object>::KEYS),*)?],
                        &[$($((const { key_name(stringify!($unbuilt)) }, $what)),*)?],
                        $crate::object!(@foreign $($foreign)?),
                        const {
                            $crate::object::UnknownKeys {
                                is_closed: Self::IS_CLOSED,
                                holds_secrets: Self::HOLDS_SECRETS,
                            }
                        },
                        &path,
                        sink,
                    );
                }
                $($($crate::object::report_missing_any(&[$(key_name(stringify!($one))),+], $without, entries, at, path, sink);)+)?
                $(let $key = $crate::object!(
                    @value $presence $(($default))? $key const { key_name(stringify!($key)) }, $kind, at, path, sink
                );)*
                $($(
                    let $part = <$part_ty as $crate::object::Object>::read_entries(&$part, at, path, sink)?;
                )*)?
                Some($name { $($key,)* $($($part,)*)? })
            }

            fn describe(
                definitions: &mut $crate::description::Definitions,
            ) -> Vec<$crate::description::KeyDescription> {
                use $crate::object::key_name;
                vec![
                    $($crate::description::KeyDescription {
                        name: const { key_name(stringify!($key)) },
                        doc: concat!($($key_doc, "\n"),+),
                        schema: $crate::kind::schema::<$ty>(&$kind, definitions),
                        presence: $crate::object!(@presence $presence $(($default))? $kind),
                    },)*
                    $($($crate::description::KeyDescription {
                        name: const { key_name(stringify!($unbuilt)) },
                        doc: concat!($what, " not supported yet; only an empty value is accepted."),
                        schema: $crate::description::unimplemented_schema(),
                        presence: $crate::description::Presence::Optional,
                    },)*)?
                ]
                .into_iter()
                $($(.chain(<$part_ty as $crate::object::Object>::describe(definitions)))*)?
                .collect()
            }
        }
    };
}
