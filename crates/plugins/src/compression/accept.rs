//! `Accept-Encoding` (RFC 9110 section 12.5.3): whether a client accepts a coding, and with which preference.

/// The weights of codings that matter for one of them. They are thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Weights {
    coding: Option<u16>,
    /// `*`
    others: Option<u16>,
    identity: Option<u16>,
}

/// The weight of a coding for a client with these lines of `Accept-Encoding`, in thousandths, if a body may, and
/// should, be sent in it: the coding is named or `*`, with a weight that is not zero and not below that of the identity
/// coding, if that has one. Otherwise zero.
///
/// A client without the field would accept any coding; as in nginx it gets none, since it may not know of them.
pub(super) fn weight_of<'a>(lines: impl Iterator<Item = &'a [u8]>, coding: &str) -> u16 {
    let mut weights = Weights::default();
    for item in lines.flat_map(|line| line.split(|byte| *byte == b',')) {
        let mut parts = item.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        let place = match name {
            _ if is(coding) => &mut weights.coding,
            // nginx, which compresses for APISIX's `gzip`, looks for the coding's own name.
            b"*" if coding != "gzip" => &mut weights.others,
            _ if is("identity") => &mut weights.identity,
            _ => continue,
        };
        // The first one counts.
        place.get_or_insert(weight(parts));
    }
    let weight = weights.coding.or(weights.others).unwrap_or(0);
    if weight >= weights.identity.unwrap_or(0) { weight } else { 0 }
}

/// The weight of an item, from its parameters; 0 if it is invalid.
fn weight<'a>(parameters: impl Iterator<Item = &'a [u8]>) -> u16 {
    for parameter in parameters {
        if let [b'q' | b'Q', b'=', value @ ..] = parameter {
            return thousandths(value.trim_ascii()).unwrap_or(0);
        }
    }
    1000
}

/// `0`, `1`, or one of them with up to three decimals.
fn thousandths(text: &[u8]) -> Option<u16> {
    let (whole, decimals) = match text {
        [whole] => (whole, &[][..]),
        [whole, b'.', decimals @ ..] if decimals.len() <= 3 => (whole, decimals),
        _ => return None,
    };
    let mut value = match whole {
        b'0' => 0,
        b'1' => 1,
        _ => return None,
    };
    for place in 0..3 {
        let digit = decimals.get(place).copied().unwrap_or(b'0');
        value = 10 * value + u16::from(digit.is_ascii_digit().then(|| digit - b'0')?);
    }
    (value <= 1000).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_decide() {
        let check = |lines: &[&str], expected: bool| {
            assert_eq!(weight_of(lines.iter().map(|line| line.as_bytes()), "gzip") > 0, expected, "{lines:?}");
        };
        check(&[], false);
        check(&[""], false);
        check(&["gzip"], true);
        check(&["GZIP"], true);
        check(&["x-gzip"], false);
        check(&["deflate, br"], false);
        check(&["deflate, gzip;q=1.0, *;q=0.5"], true);
        check(&["deflate", "br, gzip"], true);
        check(&["gzip;q=0"], false);
        check(&["gzip;q=0.000"], false);
        check(&["gzip;q=0.001"], true);
        check(&["gzip ; q=0.5"], true);
        check(&["gzip;Q=1"], true);
        check(&["*"], false);
        check(&["*;q=0"], false);
        check(&["gzip;q=0, *"], false);
        check(&["*;q=0, gzip"], true);
        check(&["identity, gzip"], true);
        check(&["identity;q=1, gzip;q=0.5"], false);
        check(&["identity;q=0.5, gzip"], true);
        check(&["identity;q=0"], false);
        check(&["identity;q=0, *"], false);
        for bad in ["gzip;q=", "gzip;q=2", "gzip;q=1.001", "gzip;q=0.0001", "gzip;q=a", "gzip;q=.5", "gzip;q=-1"] {
            check(&[bad], false);
        }
        check(&["gzip;level=1"], true);
        check(&["gzipped, ,;,"], false);
        let weight = |line: &str, coding: &str| weight_of([line.as_bytes()].into_iter(), coding);
        let line = "gzip;q=0.5, br;q=0.25, *;q=0.75, identity;q=0.3";
        assert_eq!(["gzip", "br", "zstd"].map(|coding| weight(line, coding)), [500, 0, 750]);
    }
}
