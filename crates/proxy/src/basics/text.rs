//! Values as text.

use std::io::Write;

/// Writes a value whose text is not stored anywhere.
pub(crate) fn written(buffer: &mut Vec<u8>, value: impl std::fmt::Display) -> &[u8] {
    buffer.clear();
    write!(buffer, "{value}").expect("writing to a vector does not fail");
    buffer
}
