//! An answer that the gateway gives itself: what plugins end a request with, and every other answer of our own.

use crate::device::Device;
use std::borrow::Cow;
use std::sync::Arc;

/// A status and a body. Header fields of the answer are set with [`crate::Request::response`], which holds for the response
/// from wherever it comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// From 200 to 599; 101 of a device.
    pub status: u16,
    /// `Content-Type`; `None`: the line is left out.
    pub content_type: Option<Cow<'static, str>>,
    /// What follows the head.
    pub body: Body,
}

/// The body of an answer. What a configuration holds is shared, so that giving it takes no memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// Nothing, with `Content-Length: 0`.
    Empty,
    /// What stands in the program.
    Static(&'static [u8]),
    /// What a configuration holds.
    Shared(Arc<[u8]>),
    /// What was written for this request.
    Owned(Vec<u8>),
    /// The metrics of the process, which bring status and type along; 404 where there are none. They come in pieces from the
    /// thread that makes them.
    Metrics,
    /// None: the request becomes the connection of this device, where there is room for it.
    Device(Arc<Device>),
}

/// What APISIX gives its JSON answers as. (OpenResty's default type is `text/plain`; APISIX answers with it where a plugin
/// exits with a table and no type was set.)
const TEXT: &str = "text/plain; charset=utf-8";

impl Answer {
    /// With no body.
    pub const fn empty(status: u16) -> Answer {
        Answer { status, content_type: None, body: Body::Empty }
    }

    /// With a text that stands in the program.
    pub const fn text(status: u16, text: &'static str) -> Answer {
        Answer { status, content_type: Some(Cow::Borrowed(TEXT)), body: Body::Static(text.as_bytes()) }
    }

    /// With JSON that stands in the program. A line end is put behind it, as APISIX does.
    pub fn json(status: u16, json: &str) -> Answer {
        Answer::owned(status, format!("{json}\n").into_bytes())
    }

    /// With a JSON object of one text, `{"KEY":"TEXT"}`, and a line end.
    pub fn object(status: u16, key: &str, text: &str) -> Answer {
        let body = format!("{}\n", serde_json::json!({ key: text }));
        Answer::shared(status, body.into_bytes().into())
    }

    /// With `{"error_msg":"TEXT"}`, or without a text the page of the status: APISIX's `rejected_code` and `rejected_msg`.
    pub fn rejection(status: u16, text: Option<&str>) -> Answer {
        text.map_or_else(|| Answer::page(status), |text| Answer::object(status, "error_msg", text))
    }

    /// The page of a status, as nginx writes it; nothing where nginx has no page.
    pub fn page(status: u16) -> Answer {
        let Some(title) = page_title(status) else { return Answer::empty(status) };
        let title = format!("{status} {title}");
        let page = format!(
            "<html>\r\n<head><title>{title}</title></head>\r\n<body>\r\n<center><h1>{title}</h1></center>\r\n\
             <hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
        );
        let content_type = Some(Cow::Borrowed("text/html; charset=utf-8"));
        Answer { status, content_type, body: Body::Shared(page.into_bytes().into()) }
    }

    /// The metrics, whatever there is of them.
    pub const fn metrics() -> Answer {
        Answer { status: 200, content_type: None, body: Body::Metrics }
    }

    /// The request, a handshake of WebSocket, becomes the connection of a device.
    pub fn device(device: Device) -> Answer {
        Answer { status: 101, content_type: None, body: Body::Device(Arc::new(device)) }
    }

    /// With a body that a configuration holds.
    pub fn shared(status: u16, body: Arc<[u8]>) -> Answer {
        Answer { status, content_type: Some(Cow::Borrowed(TEXT)), body: Body::Shared(body) }
    }

    /// With a body that was written for this request.
    pub fn owned(status: u16, body: Vec<u8>) -> Answer {
        Answer { status, content_type: Some(Cow::Borrowed(TEXT)), body: Body::Owned(body) }
    }
}

/// What nginx calls a status on its pages; `None`: it has no page of that status.
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

impl Body {
    /// Its bytes, as far as they are here.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Body::Empty | Body::Metrics | Body::Device(_) => &[],
            Body::Static(bytes) => bytes,
            Body::Shared(bytes) => bytes,
            Body::Owned(bytes) => bytes,
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
