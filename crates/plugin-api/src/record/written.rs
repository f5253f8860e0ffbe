//! Formats values for logs: numbers, addresses, times, and escaped values from clients.
//!
//! It does not depend on fields and layouts.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};

/// Most bytes of one client-sent value in a line of the access log; a longer value is cut and ends in `...`.
pub const VALUE_BYTES_MAX: usize = 4096;

const CUT: &[u8] = b"...";

/// Appends a number in decimal.
pub fn push_number(number: impl itoa::Integer, line: &mut Vec<u8>) {
    line.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends an address. `Display` of an IPv4 address costs as much as the rest of a line, so its octets are written one
/// by one.
pub fn push_ip(ip: IpAddr, line: &mut Vec<u8>) {
    match ip {
        IpAddr::V4(ip) => {
            for (position, octet) in ip.octets().into_iter().enumerate() {
                if position > 0 {
                    line.push(b'.');
                }
                push_number(octet, line);
            }
        }
        IpAddr::V6(ip) => write!(line, "{ip}").expect("writing to a Vec cannot fail"),
    }
}

/// Appends an address and a port.
pub fn push_address(address: SocketAddr, line: &mut Vec<u8>) {
    match address {
        SocketAddr::V4(address) => {
            push_ip(IpAddr::V4(*address.ip()), line);
            line.push(b':');
            push_number(address.port(), line);
        }
        SocketAddr::V6(address) => write!(line, "{address}").expect("writing to a Vec cannot fail"),
    }
}

/// Appends microseconds as decimal seconds: `0.001234`.
pub fn push_seconds(time_us: u64, line: &mut Vec<u8>) {
    push_number(time_us / 1_000_000, line);
    line.push(b'.');
    let mut fraction = [b'0'; 6];
    let mut rest = time_us % 1_000_000;
    for digit in fraction.iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    line.extend_from_slice(&fraction);
}

/// Appends a number as so many lower-case hexadecimal digits.
pub fn push_hex_number(number: u128, digits: u32, out: &mut Vec<u8>) {
    for digit in (0..digits).rev() {
        out.push(b"0123456789abcdef"[(number >> (4 * digit) & 15) as usize]);
    }
}

/// Appends a JSON string, with at most so many bytes of the text; a longer text is cut and ends in `...`.
pub fn push_json_string(value: &[u8], bytes_max: usize, line: &mut Vec<u8>) {
    let (value, cut) = shorten(value, bytes_max);
    line.push(b'"');
    for part in value.utf8_chunks() {
        push_json_text(part.valid(), line);
        if !part.invalid().is_empty() {
            line.extend_from_slice("\u{FFFD}".as_bytes());
        }
    }
    line.extend_from_slice(cut);
    line.push(b'"');
}

/// Length of the output of [`push_json_string`].
pub fn json_string_bytes(value: &[u8]) -> usize {
    let of_text = |text: &str| -> usize {
        let of_byte = |byte: u8| match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 2,
            0..0x20 => 6,
            _ => 1,
        };
        text.bytes().map(of_byte).sum()
    };
    let of_broken = |broken: &[u8]| if broken.is_empty() { 0 } else { '\u{FFFD}'.len_utf8() };
    2 + value.utf8_chunks().map(|part| of_text(part.valid()) + of_broken(part.invalid())).sum::<usize>()
}

/// Copies runs of ordinary bytes at once, as nearly all values are a single run.
fn push_json_text(text: &str, line: &mut Vec<u8>) {
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\') {
        line.extend_from_slice(&rest[..at]);
        match rest[at] {
            b'"' => line.extend_from_slice(b"\\\""),
            b'\\' => line.extend_from_slice(b"\\\\"),
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            b'\t' => line.extend_from_slice(b"\\t"),
            control => {
                line.extend_from_slice(b"\\u00");
                push_hex(control, line);
            }
        }
        rest = &rest[at + 1..];
    }
    line.extend_from_slice(rest);
}

/// Escapes like `ngx_http_log_escape` in nginx's `ngx_http_log_module.c`: controls, `"`, `\` and everything from 0x7F
/// on.
pub fn push_combined(value: &[u8], line: &mut Vec<u8>) {
    let (mut rest, cut) = shorten(value, VALUE_BYTES_MAX);
    while let Some(at) = rest.iter().position(|&byte| !(0x20..0x7F).contains(&byte) || byte == b'"' || byte == b'\\') {
        line.extend_from_slice(&rest[..at]);
        line.extend_from_slice(b"\\x");
        push_hex(rest[at], line);
        rest = &rest[at + 1..];
    }
    line.extend_from_slice(rest);
    line.extend_from_slice(cut);
}

fn push_hex(byte: u8, line: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    line.push(DIGITS[usize::from(byte >> 4)]);
    line.push(DIGITS[usize::from(byte & 15)]);
}

fn shorten(value: &[u8], bytes_max: usize) -> (&[u8], &'static [u8]) {
    match value.get(..bytes_max) {
        Some(start) if value.len() > bytes_max => (start, CUT),
        _ => (value, b""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_times() {
        fn shown(push: impl FnOnce(&mut Vec<u8>)) -> String {
            let mut line = Vec::new();
            push(&mut line);
            String::from_utf8(line).expect("ASCII")
        }
        for text in ["192.0.2.1:80", "255.255.255.255:65535", "[2001:db8::1]:8080", "[::ffff:10.0.0.1]:1"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(shown(|line| push_address(address, line)), text);
            assert_eq!(shown(|line| push_ip(address.ip(), line)), address.ip().to_string());
        }
        for (time_us, text) in [(0, "0.000000"), (1, "0.000001"), (999_999, "0.999999"), (61_000_020, "61.000020")] {
            assert_eq!(shown(|line| push_seconds(time_us, line)), text);
        }
    }
}
