//! Why a message was refused, in the words that the other side and the log see.

use std::fmt;

/// The answer to the sender of a refused request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// 400
    BadRequest,
    /// 414
    TargetTooLong,
    /// 431
    HeadTooLarge,
    /// 505
    Version,
}

macro_rules! errors {
    ($(#[$doc:meta])* $name:ident { $($variant:ident => $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $(#[doc = $text] $variant,)*
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($name::$variant => $text,)* })
            }
        }

        impl std::error::Error for $name {}
    };
}

errors! {
    /// Why a request head was refused.
    RequestError {
        RequestLine => "malformed request line",
        Method => "a method has only letters in upper case, - and _",
        Version => "only HTTP/1.0 and HTTP/1.1 are spoken here",
        TargetTooLong => "request target too long",
        HeadTooLarge => "request head too large",
        TooManyHeaders => "too many header fields",
        BadHeader => "malformed header field",
        LineEnd => "a line must end in CR LF",
        TargetForm => "malformed request target",
        HostMissing => "Host is missing",
        HostRepeated => "more than one Host",
        HostInvalid => "malformed Host",
        LengthMalformed => "malformed Content-Length",
        LengthRepeated => "more than one Content-Length",
        CodingAndLength => "Transfer-Encoding and Content-Length together",
        CodingUnknown => "Transfer-Encoding must be exactly chunked",
        CodingInHttp10 => "Transfer-Encoding in an HTTP/1.0 message",
        ConnectionOptions => "too many Connection options",
        FramingLookalike => "a header field that looks like a framing field",
    }
}

errors! {
    /// Why a response head was refused.
    ResponseError {
        StatusLine => "malformed status line",
        HeadTooLarge => "response head too large",
        TooManyHeaders => "too many header fields",
        BadHeader => "malformed header field",
        LineEnd => "a line must end in CR LF",
        LengthMalformed => "malformed Content-Length",
        LengthRepeated => "more than one Content-Length",
        CodingAndLength => "Transfer-Encoding and Content-Length together",
        CodingUnknown => "Transfer-Encoding must be exactly chunked",
        CodingInHttp10 => "Transfer-Encoding in an HTTP/1.0 message",
        ConnectionOptions => "too many Connection options",
        BodyForbidden => "a body announced on a status that has none",
    }
}

errors! {
    /// Why a chunked body was refused.
    ChunkError {
        SizeMalformed => "malformed chunk size",
        SizeTooLarge => "chunk size too large",
        LineTooLong => "chunk line too long",
        LineEnd => "a chunk line or chunk must end in CR LF",
        ExtensionMalformed => "control character in a chunk extension",
        TrailerTooLarge => "trailer section too large",
        TrailerMalformed => "malformed trailer field",
    }
}

errors! {
    /// Why a PROXY protocol header was refused.
    ProxyProtocolError {
        Signature => "it does not begin with a PROXY protocol header",
        LineTooLong => "version 1: no CR LF within 107 bytes",
        LineEnd => "version 1: the line must end in CR LF",
        Protocol => "version 1: the protocol must be TCP4, TCP6 or UNKNOWN",
        FieldCount => "version 1: not two addresses and two ports, one space before each",
        Address => "version 1: malformed address, or one of the other family",
        Port => "version 1: malformed port",
        Version => "version 2: another version after the signature",
        Command => "version 2: the command must be LOCAL or PROXY",
        Family => "version 2: unknown address family or transport",
        HeaderTooLong => "version 2: more than 4096 bytes",
        AddressLength => "version 2: too short for the addresses of its family",
        TlvOverrun => "version 2: a TLV that reaches beyond its end",
        TlvRepeated => "version 2: a TLV that may come once came twice",
        TlsLength => "version 2: a TLS TLV without its fields",
        ChecksumLength => "version 2: a checksum that is not of 4 bytes",
        Checksum => "version 2: the checksum (CRC-32C) is wrong",
    }
}

impl RequestError {
    /// The fault that decides the status.
    pub fn fault(self) -> Fault {
        match self {
            RequestError::TargetTooLong => Fault::TargetTooLong,
            RequestError::HeadTooLarge | RequestError::TooManyHeaders => Fault::HeadTooLarge,
            RequestError::Version => Fault::Version,
            _ => Fault::BadRequest,
        }
    }
}
