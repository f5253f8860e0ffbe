//! Common parts of plugins with an allow list or a deny list, and a message for refused requests.

use stillgate_plugin_api::Compile;
use stillgate_schema::{Fault, Text, text};

/// Longest message, in characters.
const MESSAGE_CHARS_MAX: usize = 1024;

/// The value of `message`.
pub(crate) const MESSAGE: Text<String> = text("a text", |text| match text.chars().count() {
    1..=MESSAGE_CHARS_MAX => Ok(text.to_owned()),
    _ => Err(Fault::new(format!("a message has from 1 to {MESSAGE_CHARS_MAX} characters"))),
})
.shown();

/// An allow list or a deny list.
#[derive(Debug)]
pub(crate) enum AccessList<T> {
    /// Only its members pass.
    Allowed(T),
    /// Its members do not pass.
    Denied(T),
}

impl<T> AccessList<T> {
    /// Reads two keys, of which exactly one must be present. `any_of` in the table of keys requires one; if both are
    /// absent, that has been reported.
    pub(crate) fn of(
        allowed: (&str, Option<T>),
        denied: (&str, Option<T>),
        cx: &mut Compile<'_>,
    ) -> Option<AccessList<T>> {
        match (allowed, denied) {
            ((_, Some(allowed)), (_, None)) => Some(AccessList::Allowed(allowed)),
            ((_, None), (_, Some(denied))) => Some(AccessList::Denied(denied)),
            ((_, None), (_, None)) => None,
            ((one, Some(_)), (other, Some(_))) => {
                let fault = Fault::new(format!("`{one}` and `{other}` cannot be combined")).hint("keep one of the two");
                cx.sink.error(cx.at, cx.path, fault);
                None
            }
        }
    }

    /// Converts the list.
    pub(crate) fn try_map<U>(self, make: impl FnOnce(T) -> Option<U>) -> Option<AccessList<U>> {
        match self {
            AccessList::Allowed(list) => make(list).map(AccessList::Allowed),
            AccessList::Denied(list) => make(list).map(AccessList::Denied),
        }
    }

    /// Whether a request passes, given whether it is in the list.
    #[inline]
    pub(crate) fn admits(&self, is_in: impl FnOnce(&T) -> bool) -> bool {
        match self {
            AccessList::Allowed(list) => is_in(list),
            AccessList::Denied(list) => !is_in(list),
        }
    }
}
