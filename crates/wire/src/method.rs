//! Request methods with their properties by RFC 9110 section 9.2.

/// A request method; case matters (RFC 9110 section 9.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Method {
    /// GET
    #[default]
    Get,
    /// HEAD
    Head,
    /// POST
    Post,
    /// PUT
    Put,
    /// DELETE
    Delete,
    /// CONNECT
    Connect,
    /// OPTIONS
    Options,
    /// TRACE
    Trace,
    /// PATCH
    Patch,
    /// PURGE, of caches
    Purge,
    /// Any other token
    Other,
}

impl Method {
    /// The methods that have a variant of their own, with their names.
    pub const NAMED: [(Method, &str); 10] = [
        (Method::Get, "GET"),
        (Method::Post, "POST"),
        (Method::Put, "PUT"),
        (Method::Delete, "DELETE"),
        (Method::Patch, "PATCH"),
        (Method::Head, "HEAD"),
        (Method::Options, "OPTIONS"),
        (Method::Connect, "CONNECT"),
        (Method::Trace, "TRACE"),
        (Method::Purge, "PURGE"),
    ];

    /// Never fails: an unregistered token is [`Method::Other`].
    pub fn from_bytes(token: &[u8]) -> Method {
        match token {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"CONNECT" => Method::Connect,
            b"OPTIONS" => Method::Options,
            b"TRACE" => Method::Trace,
            b"PATCH" => Method::Patch,
            b"PURGE" => Method::Purge,
            _ => Method::Other,
        }
    }

    /// Its name; `None` for [`Method::Other`], whose name is only in the request.
    #[inline]
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
            Method::Patch => "PATCH",
            Method::Head => "HEAD",
            Method::Options => "OPTIONS",
            Method::Connect => "CONNECT",
            Method::Trace => "TRACE",
            Method::Purge => "PURGE",
            Method::Other => return None,
        })
    }

    /// Whether sending it twice means the same as once (RFC 9110 section 9.2.2).
    pub fn is_idempotent(self) -> bool {
        matches!(self, Method::Get | Method::Head | Method::Put | Method::Delete | Method::Options | Method::Trace)
    }
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name().unwrap_or("another"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_list() {
        for (method, name) in Method::NAMED {
            assert_eq!((method.name(), Method::from_bytes(name.as_bytes())), (Some(name), method));
        }
        assert_eq!(Method::Other.name(), None);
    }

    #[test]
    fn idempotent_methods() {
        for method in ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"] {
            assert!(Method::from_bytes(method.as_bytes()).is_idempotent(), "{method}");
        }
        for method in ["POST", "PATCH", "CONNECT", "get", "PROPFIND", ""] {
            assert!(!Method::from_bytes(method.as_bytes()).is_idempotent(), "{method}");
        }
    }
}
