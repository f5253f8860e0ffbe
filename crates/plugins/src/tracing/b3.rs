//! B3, the context of Zipkin: several header fields, or one.

use super::w3c::number;

/// The trace context of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Context {
    /// `None`: it is absent or invalid.
    pub(super) ids: Option<Ids>,
    /// Whether it is sampled; `None`: we decide.
    pub(super) is_sampled: Option<bool>,
    /// The debug flag: it is always sampled, and so are its children.
    pub(super) is_debug: bool,
}

/// The ids of a trace and of the caller's span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ids {
    pub(super) trace: u128,
    /// The trace id has 64 bits, and is passed on as such.
    pub(super) is_short: bool,
    pub(super) span: u64,
}

/// The field `b3` is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Invalid;

impl Context {
    /// Parses the field `b3`: `TRACE-SPAN`, `TRACE-SPAN-SAMPLED` or `TRACE-SPAN-SAMPLED-PARENT`; or `0` alone.
    pub(super) fn single(value: &[u8]) -> Result<Context, Invalid> {
        if value == b"0" {
            return Ok(Context { is_sampled: Some(false), ..Context::default() });
        }
        let mut parts = value.splitn(4, |byte| *byte == b'-');
        let (trace, span) = (parts.next().unwrap_or_default(), parts.next().ok_or(Invalid)?);
        let sampled = parts.next();
        let parent_is_good = parts.next().is_none_or(|parent| id(parent).is_some());
        let ids = ids(trace, span).filter(|_| parent_is_good);
        let is_debug = sampled == Some(b"d");
        Ok(Context { ids, is_sampled: if is_debug { Some(true) } else { sampled.and_then(decision) }, is_debug })
    }

    /// Parses the fields `X-B3-TraceId`, `X-B3-SpanId`, `X-B3-ParentSpanId`, `X-B3-Sampled` and `X-B3-Flags`.
    pub(super) fn several([trace, span, parent, sampled, flags]: [Option<&[u8]>; 5]) -> Context {
        let parent_is_good = parent.is_none_or(|parent| id(parent).is_some());
        let ids = trace.zip(span).and_then(|(trace, span)| ids(trace, span)).filter(|_| parent_is_good);
        let is_debug = flags == Some(b"1");
        let is_sampled = sampled.and_then(decision).or(is_debug.then_some(true));
        Context { ids, is_sampled, is_debug }
    }
}

fn decision(value: &[u8]) -> Option<bool> {
    match value {
        b"1" | b"true" => Some(true),
        b"0" | b"false" => Some(false),
        _ => None,
    }
}

fn ids(trace: &[u8], span: &[u8]) -> Option<Ids> {
    let is_short = match trace.len() {
        16 => true,
        32 => false,
        _ => return None,
    };
    Some(Ids { trace: number(trace)?, is_short, span: id(span)? })
}

/// Parses the id of a span.
fn id(text: &[u8]) -> Option<u64> {
    let number = number(text).filter(|_| text.len() == 16)?;
    u64::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &[u8] = b"80f198ee56343ba864fe8b2a57d3eff7";
    const SPAN: &[u8] = b"e457b5a2e4d86bd1";

    #[test]
    fn one_field() {
        let ids = Ids { trace: 0x80f198ee56343ba864fe8b2a57d3eff7, is_short: false, span: 0xe457b5a2e4d86bd1 };
        let of = |rest: &str| {
            Context::single(&[TRACE, b"-", SPAN, rest.as_bytes()].concat()).map(|context| {
                assert_eq!(context.ids, Some(ids), "{rest}");
                (context.is_sampled, context.is_debug)
            })
        };
        assert_eq!(of(""), Ok((None, false)));
        assert_eq!(of("-1"), Ok((Some(true), false)));
        assert_eq!(of("-0-05e3ac9a4f6e3b90"), Ok((Some(false), false)));
        assert_eq!(of("-d"), Ok((Some(true), true)));
        assert_eq!(Context::single(b"0"), Ok(Context { is_sampled: Some(false), ..Context::default() }));
        assert_eq!(Context::single(b"1"), Err(Invalid));
        assert_eq!(Context::single(TRACE), Err(Invalid));
        for bad in ["x-y", "80f1-e457b5a2e4d86bd1-1", "80f198ee56343ba8-e457b5a2e4d86bd1-1-x"] {
            assert_eq!(Context::single(bad.as_bytes()).unwrap().ids, None, "{bad}");
        }
    }

    #[test]
    fn several_fields() {
        let short = Ids { trace: 0x64fe8b2a57d3eff7, is_short: true, span: 0xe457b5a2e4d86bd1 };
        let context = Context::several([Some(&TRACE[16..]), Some(SPAN), None, Some(b"1"), None]);
        assert_eq!(context, Context { ids: Some(short), is_sampled: Some(true), is_debug: false });
        let check = |parts, expected| assert_eq!(Context::several(parts), expected);
        let none = Context::default();
        check([Some(TRACE), None, None, None, None], none);
        check([Some(TRACE), Some(SPAN), Some(b"x"), None, None], none);
        check([None, None, None, Some(b"maybe"), Some(b"2")], none);
        check([None, None, None, None, Some(b"1")], Context { is_sampled: Some(true), is_debug: true, ..none });
        check([None, None, None, Some(b"0"), Some(b"1")], Context { is_sampled: Some(false), is_debug: true, ..none });
    }
}
