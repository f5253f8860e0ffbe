//! What the head of a response says of its body.

use stillgate_plugin::Response;
use stillgate_wire::FieldName;

/// How the body is coded.
pub(crate) const CONTENT_ENCODING: FieldName<'static> = FieldName::constant("Content-Encoding");
/// Which version of the body it is.
pub(crate) const ETAG: FieldName<'static> = FieldName::constant("ETag");
/// The body's media type.
pub(crate) const CONTENT_TYPE: FieldName<'static> = FieldName::constant("Content-Type");

/// What the head says of the body no longer holds, since the body becomes another.
pub(crate) fn forget_old_body(response: &mut Response<'_>) {
    for name in [CONTENT_ENCODING, FieldName::constant("Last-Modified"), ETAG] {
        response.remove_header(name);
    }
}
