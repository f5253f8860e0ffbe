//! `error-page`: custom pages for the gateway's errors. The pages are in the plugin's metadata.
//!
//! It acts on local replies of the gateway and its plugins, never on responses of nodes. Unlike APISIX, that includes
//! the 502 and 504 for a node that could not be reached or did not answer.

use crate::body_fields::{CONTENT_TYPE, forget_old_body};
use stillgate_plugin_api::{Answer, Compile, Define, Metadata, Phase, Phases, Plugin, Response};
use stillgate_schema::{Fault, Flag, TEXT, Text, map, object, text};
use stillgate_wire::OwnedFieldValue;

object! {
    /// Replaces the gateway's error pages by custom ones.
    pub(crate) struct ErrorPageKeys {}
}

object! {
    /// The pages.
    pub(crate) struct ErrorPageMetadata {
        /// Whether they are used.
        enable: bool = Flag => default(false);
        /// The page of 400.
        error_400: PageKeys = map() => optional;
        /// The page of 401.
        error_401: PageKeys = map() => optional;
        /// The page of 403.
        error_403: PageKeys = map() => optional;
        /// The page of 404.
        error_404: PageKeys = map() => optional;
        /// The page of 405.
        error_405: PageKeys = map() => optional;
        /// The page of 408.
        error_408: PageKeys = map() => optional;
        /// The page of 413.
        error_413: PageKeys = map() => optional;
        /// The page of 414.
        error_414: PageKeys = map() => optional;
        /// The page of 429.
        error_429: PageKeys = map() => optional;
        /// The page of 431.
        error_431: PageKeys = map() => optional;
        /// The page of 500.
        error_500: PageKeys = map() => optional;
        /// The page of 501.
        error_501: PageKeys = map() => optional;
        /// The page of 502.
        error_502: PageKeys = map() => optional;
        /// The page of 503.
        error_503: PageKeys = map() => optional;
        /// The page of 504.
        error_504: PageKeys = map() => optional;
    }
}

object! {
    /// A page.
    pub(crate) struct PageKeys {
        /// Its text; the gateway's page of that status if the key is absent. With an empty text the answer is
        /// unchanged.
        body: String = TEXT => optional;
        /// Its media type.
        content_type: OwnedFieldValue = MEDIA_TYPE => default(html());
    }
}

const MEDIA_TYPE: Text<OwnedFieldValue> =
    text("a media type", |text| OwnedFieldValue::new(text.as_bytes()).map_err(|error| Fault::new(error.to_string())));

fn html() -> OwnedFieldValue {
    OwnedFieldValue::new(b"text/html").expect("a value without control characters")
}

/// The plugin.
pub(crate) struct ErrorPage;

impl Define for ErrorPage {
    type Keys = ErrorPageKeys;
    const NAME: &'static str = "error-page";
    const PRIORITY: i32 = 450;
    const PHASES: Phases = Phases::of(&[Phase::HeaderFilter, Phase::BodyFilter]);

    fn compile(_: ErrorPageKeys, _: &mut Compile<'_>) -> Option<ErrorPage> {
        Some(ErrorPage)
    }
}

impl Metadata for ErrorPage {
    type Metadata = ErrorPageMetadata;
}

impl Plugin for ErrorPage {
    fn header_filter(&self, response: &mut Response<'_>) {
        let metadata = response.metadata;
        let Some(pages) = metadata.get::<ErrorPageMetadata>(ErrorPage::NAME).filter(|pages| pages.enable) else {
            return;
        };
        let status = response.status();
        let page = match status {
            400 => &pages.error_400,
            401 => &pages.error_401,
            403 => &pages.error_403,
            404 => &pages.error_404,
            405 => &pages.error_405,
            408 => &pages.error_408,
            413 => &pages.error_413,
            414 => &pages.error_414,
            429 => &pages.error_429,
            431 => &pages.error_431,
            500 => &pages.error_500,
            501 => &pages.error_501,
            502 => &pages.error_502,
            503 => &pages.error_503,
            504 => &pages.error_504,
            _ => return,
        };
        let Some(page) = page.as_ref().filter(|_| !response.is_of_node) else { return };
        match &page.body {
            Some(body) if body.is_empty() => return,
            Some(body) => response.body.replace(body.as_bytes()),
            None if matches!(status, 404 | 500 | 502 | 503) => {
                response.body.replace(Answer::page(status).body.bytes());
            }
            // As in APISIX, only those can have a custom page.
            None => return,
        }
        forget_old_body(response);
        response.set_header(CONTENT_TYPE, page.content_type.value());
    }
}
