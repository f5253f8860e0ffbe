//! Header fields that describe the body, which are removed when the body is changed.

use stillgate_plugin_api::{Request, Response};
use stillgate_wire::FieldName;

/// How the body is coded.
pub(crate) const CONTENT_ENCODING: FieldName<'static> = FieldName::constant("Content-Encoding");
/// Which version of the body it is.
pub(crate) const ETAG: FieldName<'static> = FieldName::constant("ETag");
/// The body's media type.
pub(crate) const CONTENT_TYPE: FieldName<'static> = FieldName::constant("Content-Type");

/// Checksums of the transferred bytes, and range support: RFC 9530, RFC 3230, RFC 1864, RFC 9110.
const OF_CODED_BYTES: [FieldName<'static>; 5] = [
    FieldName::constant("Accept-Ranges"),
    FieldName::constant("Content-MD5"),
    FieldName::constant("Content-Digest"),
    FieldName::constant("Repr-Digest"),
    FieldName::constant("Digest"),
];
/// Fields that describe the body in any coding.
const OF_BODY: [FieldName<'static>; 4] = [
    CONTENT_ENCODING,
    ETAG,
    FieldName::constant("Last-Modified"),
    // A digest of the bytes before they are coded (draft-ietf-httpbis-unencoded-digest).
    FieldName::constant("Unencoded-Digest"),
];

/// Removes the fields that describe the old body, when the body is replaced. Whatever changes a body calls this.
pub(crate) fn forget_old_body(response: &mut Response<'_>) {
    forget_coded_bytes(response);
    OF_BODY.into_iter().for_each(|name| response.remove_header(name));
}

/// Removes the fields that depend on the coding, when only the coding changes.
pub(crate) fn forget_coded_bytes(response: &mut Response<'_>) {
    OF_CODED_BYTES.into_iter().for_each(|name| response.remove_header(name));
}

/// Like [`forget_old_body`], for a request.
pub(crate) fn forget_old_request_body(request: &mut Request<'_>) {
    OF_CODED_BYTES.into_iter().chain(OF_BODY).for_each(|name| request.remove_header(name));
}
