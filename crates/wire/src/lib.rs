//! HTTP/1 parsing, framing and serialising, without IO or a clock.
