//! What several kinds of resources have: kinds of values, and keys that are written once and put into each table between its id and
//! its own keys.

use crate::values::OnChange;
use stillgate_schema::kind::{Choice, Int, Text, int, text};
use stillgate_schema::text::diagnostic::{Fault, shortened};

/// The longest id of a resource.
pub const ID_BYTES_MAX: usize = 64;

/// When a resource was made or changed.
pub(crate) const UNIX_TIME: Int<i64> = int(0, 10_000_000_000);

/// `on_change` of a route.
pub(crate) const ON_CHANGE: Choice<OnChange> =
    Choice { words: &[("keep", OnChange::Keep), ("drain", OnChange::Drain), ("close", OnChange::Close)], unbuilt: &[] };

/// `status` of a resource.
pub(crate) const STATUS: Choice<bool> = Choice { words: &[("1", true), ("0", false)], unbuilt: &[] };

/// An id by APISIX's rule; a whole number is taken as its digits.
pub(crate) const ID: Text<String> = text("an id", |text| {
    let bytes_ok = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if bytes_ok && (1..=ID_BYTES_MAX).contains(&text.len()) {
        return Ok(text.to_owned());
    }
    let fault = Fault::new(format!("{:?} is not an id", shortened(text)));
    Err(fault.hint(format!("use 1 to {ID_BYTES_MAX} letters, digits, \"-\", \"_\" and \".\"")))
})
.pattern("^[A-Za-z0-9._-]{1,64}$")
.or_number();

/// An object with keys that other resources have, too: a first block, the names of the shared keys, a second block.
macro_rules! resource {
    (
        $(#[doc = $doc:literal])+
        pub(crate) struct $name:ident { $($first:tt)* }
        shared $($shared:ident),+;
        { $($rest:tt)* }
    ) => {
        $crate::keys::shared::resource! {
            @put [$(#[doc = $doc])+ pub(crate) struct $name] [$($first)*] [$($shared)+] [$($rest)*]
        }
    };
    (@put [$($head:tt)*] [$($keys:tt)*] [] [$($rest:tt)*]) => {
        stillgate_schema::object! { $($head)* { $($keys)* $($rest)* } }
    };
    (@put $head:tt [$($keys:tt)*] [name $($shared:ident)*] $rest:tt) => {
        $crate::keys::shared::resource! { @put $head [
            $($keys)*
            #[doc = " A human-readable name."]
            name: String = stillgate_schema::kind::TEXT => optional;
        ] [$($shared)*] $rest }
    };
    (@put $head:tt [$($keys:tt)*] [desc $($shared:ident)*] $rest:tt) => {
        $crate::keys::shared::resource! { @put $head [
            $($keys)*
            #[doc = " A description."]
            desc: String = stillgate_schema::kind::TEXT => optional;
        ] [$($shared)*] $rest }
    };
    (@put $head:tt [$($keys:tt)*] [labels $($shared:ident)*] $rest:tt) => {
        $crate::keys::shared::resource! { @put $head [
            $($keys)*
            #[doc = " Arbitrary key-value pairs."]
            labels: () = stillgate_schema::kind::Labels => optional;
        ] [$($shared)*] $rest }
    };
    (@put $head:tt [$($keys:tt)*] [times $($shared:ident)*] $rest:tt) => {
        $crate::keys::shared::resource! { @put $head [
            $($keys)*
            #[doc = " Creation time, in Unix seconds; has no effect."]
            create_time: i64 = $crate::keys::shared::UNIX_TIME => optional;
            #[doc = " Time of the last change, in Unix seconds; has no effect."]
            update_time: i64 = $crate::keys::shared::UNIX_TIME => optional;
        ] [$($shared)*] $rest }
    };
}

pub(crate) use resource;
