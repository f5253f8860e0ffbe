//! A local reply: the answer with which a plugin ends a request, and every other answer of the gateway's own.

use crate::device::Device;
use std::borrow::Cow;
use std::sync::Arc;

/// A status and a body. Header fields of the answer are set with [`crate::Request::response`], which applies to the
/// response whatever its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// From 200 to 599; 101 for a device.
    pub status: u16,
    /// `Content-Type`; `None`: the header is omitted.
    pub content_type: Option<Cow<'static, str>>,
    /// The body.
    pub body: AnswerBody,
}

/// The body of an answer. A body from the configuration is shared, so that sending it takes no memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerBody {
    /// No body, with `Content-Length: 0`.
    Empty,
    /// A constant of the program.
    Static(&'static [u8]),
    /// A body from the configuration.
    Shared(Arc<[u8]>),
    /// A body written for this request.
    Owned(Vec<u8>),
    /// The metrics of the process, which bring their status and type; 404 if they are switched off. They come in pieces
    /// from the thread that makes them.
    Metrics,
    /// No body: the request becomes the connection of this device, if there is room for it.
    Device(Arc<Device>),
}

/// Content type of APISIX's JSON answers. (OpenResty's default type is `text/plain`; APISIX answers with it when a
/// plugin exits with a table and no type was set.)
const TEXT: &str = "text/plain; charset=utf-8";

impl Answer {
    /// An answer without a body.
    pub const fn empty(status: u16) -> Answer {
        Answer { status, content_type: None, body: AnswerBody::Empty }
    }

    /// An answer with a constant text.
    pub const fn text(status: u16, text: &'static str) -> Answer {
        Answer { status, content_type: Some(Cow::Borrowed(TEXT)), body: AnswerBody::Static(text.as_bytes()) }
    }

    /// An answer with constant JSON. A line end is appended, as in APISIX.
    pub fn json(status: u16, json: &str) -> Answer {
        Answer::owned(status, format!("{json}\n").into_bytes())
    }

    /// An answer with a JSON object of one text, `{"KEY":"TEXT"}`, and a line end.
    pub fn object(status: u16, key: &str, text: &str) -> Answer {
        let body = format!("{}\n", serde_json::json!({ key: text }));
        Answer::shared(status, body.into_bytes().into())
    }

    /// An answer with `{"error_msg":"TEXT"}`, or without a text the page of the status: APISIX's `rejected_code` and
    /// `rejected_msg`.
    pub fn rejection(status: u16, text: Option<&str>) -> Answer {
        text.map_or_else(|| Answer::page(status), |text| Answer::object(status, "error_msg", text))
    }

    /// The error page of a status, as in nginx; without a body if nginx has no page.
    pub fn page(status: u16) -> Answer {
        let Some(title) = page_title(status) else { return Answer::empty(status) };
        let title = format!("{status} {title}");
        let page = format!(
            "<html>\r\n<head><title>{title}</title></head>\r\n<body>\r\n<center><h1>{title}</h1></center>\r\n\
             <hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
        );
        let content_type = Some(Cow::Borrowed("text/html; charset=utf-8"));
        Answer { status, content_type, body: AnswerBody::Shared(page.into_bytes().into()) }
    }

    /// The metrics, or 404 without them.
    pub const fn metrics() -> Answer {
        Answer { status: 200, content_type: None, body: AnswerBody::Metrics }
    }

    /// Turns the request, a WebSocket handshake, into the connection of a device.
    pub fn device(device: Device) -> Answer {
        Answer { status: 101, content_type: None, body: AnswerBody::Device(Arc::new(device)) }
    }

    /// An answer with a body from the configuration.
    pub fn shared(status: u16, body: Arc<[u8]>) -> Answer {
        Answer { status, content_type: Some(Cow::Borrowed(TEXT)), body: AnswerBody::Shared(body) }
    }

    /// An answer with a body written for this request.
    pub fn owned(status: u16, body: Vec<u8>) -> Answer {
        Answer { status, content_type: Some(Cow::Borrowed(TEXT)), body: AnswerBody::Owned(body) }
    }
}

/// nginx's name of a status on its pages; `None`: it has no page for that status.
fn page_title(status: u16) -> Option<&'static str> {
    Some(match status {
        302 => "Found",
        401 => "Authorization Required",
        405 => "Not Allowed",
        408 => "Request Time-out",
        413 => "Request Entity Too Large",
        414 => "Request-URI Too Large",
        416 => "Requested Range Not Satisfiable",
        503 => "Service Temporarily Unavailable",
        504 => "Gateway Time-out",
        301 | 303 | 307 | 308 | 400..=404 | 406 | 409..=412 | 415 | 421 | 429 | 500..=502 | 505 | 507 => {
            stillgate_wire::reason(status)
        }
        _ => return None,
    })
}

impl AnswerBody {
    /// Its bytes, if they are known already.
    pub fn bytes(&self) -> &[u8] {
        match self {
            AnswerBody::Empty | AnswerBody::Metrics | AnswerBody::Device(_) => &[],
            AnswerBody::Static(bytes) => bytes,
            AnswerBody::Shared(bytes) => bytes,
            AnswerBody::Owned(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_those_of_nginx() {
        let title = |status| {
            let page = String::from_utf8(Answer::page(status).body.bytes().to_vec()).unwrap();
            page.split_once("<title>").map(|(_, rest)| rest.split_once("</title>").unwrap().0.to_owned())
        };
        for (status, expected) in [
            (302, "302 Found"),
            (400, "400 Bad Request"),
            (401, "401 Authorization Required"),
            (403, "403 Forbidden"),
            (408, "408 Request Time-out"),
            (429, "429 Too Many Requests"),
            (500, "500 Internal Server Error"),
            (503, "503 Service Temporarily Unavailable"),
            (507, "507 Insufficient Storage"),
        ] {
            assert_eq!(title(status).as_deref(), Some(expected));
        }
        for status in [200, 204, 304, 407, 418, 506, 599] {
            assert_eq!(Answer::page(status), Answer::empty(status));
        }
    }
}
