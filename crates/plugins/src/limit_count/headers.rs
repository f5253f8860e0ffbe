//! The three response headers that describe a limit's state.

use super::LimitCountMetadata;
use super::NAME;
use stillgate_limits::{Limit, LimitDecision};
use stillgate_plugin_api::Request;
use stillgate_wire::{Decimal, FieldName, FieldValue};

const NAMES: [FieldName<'static>; 3] = [
    FieldName::constant("X-RateLimit-Limit"),
    FieldName::constant("X-RateLimit-Remaining"),
    FieldName::constant("X-RateLimit-Reset"),
];
/// The prefix of a rule is inserted before this part of a name.
const STEM: &[u8] = b"RateLimit-";

/// Sets them, for a rule with its prefix in their names.
pub(super) fn tell(prefix: Option<&str>, limit: Limit, taken: LimitDecision, request: &mut Request<'_>) {
    let names = match request.metadata::<LimitCountMetadata>(NAME) {
        Some(own) => [own.limit_header.name(), own.remaining_header.name(), own.reset_header.name()],
        None => NAMES,
    };
    let values = [
        Decimal::whole(limit.count),
        // The estimate of a sliding window may be over the limit by a part of a request.
        Decimal::whole(taken.remaining.max(0) as u64),
        Decimal::seconds(taken.reset_ms),
    ];
    let told = names.into_iter().zip(values.iter().map(Decimal::value));
    match prefix {
        None => told.for_each(|(name, value)| set(name, value, request)),
        Some(prefix) => request.worker.with_buffers(|prefixed, _| {
            for (name, value) in told {
                // Each of its parts was validated when it was read.
                if let Ok(name) = FieldName::new(with_prefix(name.bytes(), prefix, prefixed)) {
                    set(name, value, request);
                }
            }
        }),
    }
}

fn set(name: FieldName<'_>, value: FieldValue<'_>, request: &mut Request<'_>) {
    request.response.remove_added(name);
    request.response.add(name, value);
}

/// `X-RateLimit-Limit` becomes `X-PREFIX-RateLimit-Limit`; a name without [`STEM`] is unchanged.
fn with_prefix<'a>(name: &'a [u8], prefix: &str, out: &'a mut Vec<u8>) -> &'a [u8] {
    let Some(at) = name.windows(STEM.len()).position(|part| part == STEM) else { return name };
    out.clear();
    for part in [&name[..at], prefix.as_bytes(), b"-", &name[at..]] {
        out.extend_from_slice(part);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_stands_before_the_stem() {
        let check = |name: &str, expected: &str| {
            assert_eq!(with_prefix(name.as_bytes(), "7", &mut Vec::new()), expected.as_bytes());
        };
        check("X-RateLimit-Limit", "X-7-RateLimit-Limit");
        check("X-AI-RateLimit-Reset", "X-AI-7-RateLimit-Reset");
        check("RateLimit-Limit", "7-RateLimit-Limit");
        check("X-Quota", "X-Quota");
    }
}
