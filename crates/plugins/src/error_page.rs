//! `error-page`: pages of one's own in place of the gateway's errors. Which pages is in the plugin's metadata.
//!
//! It acts on answers of the gateway and its plugins, never on those of nodes. Different from APISIX, that includes the 502 and
//! 504 of a node that could not be reached or did not answer.

use crate::body_fields::{CONTENT_TYPE, forget_old_body};
use stillgate_plugin::{Answer, Compile, Define, Metadata, Phase, Phases, Plugin, Response};
use stillgate_schema::{Fault, Flag, TEXT, Text, map, object, text};
use stillgate_wire::OwnedFieldValue;

object! {
    /// Gives errors of the gateway pages of one's own.
    pub(crate) struct ErrorPageKeys {}
}

object! {
    /// The pages.
    pub(crate) struct ErrorPageMetadata {
        /// Whether they are used.
        enable: bool = Flag => default(false);
        /// The page of 404.
        error_404: PageKeys = map() => optional;
        /// The page of 500.
        error_500: PageKeys = map() => optional;
        /// The page of 502.
        error_502: PageKeys = map() => optional;
        /// The page of 503.
        error_503: PageKeys = map() => optional;
    }
}

object! {
    /// A page.
    pub(crate) struct PageKeys {
        /// Its text; the gateway's page of that status if the key is absent. With an empty text the answer stays as it is.
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
            404 => &pages.error_404,
            500 => &pages.error_500,
            502 => &pages.error_502,
            503 => &pages.error_503,
            _ => return,
        };
        let Some(page) = page.as_ref().filter(|_| !response.is_of_node) else { return };
        match &page.body {
            Some(body) if body.is_empty() => return,
            Some(body) => response.body.replace(body.as_bytes()),
            None => response.body.replace(Answer::page(status).body.bytes()),
        }
        forget_old_body(response);
        response.set_header(CONTENT_TYPE, page.content_type.value());
    }
}
