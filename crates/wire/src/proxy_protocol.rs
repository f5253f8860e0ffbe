//! The header by which a balancer reports, before a connection's own bytes, whose connection it forwards: the PROXY
//! protocol, versions 1 and 2, of HAProxy's `doc/proxy-protocol.txt`.
//!
//! ```text
//! version 1   "PROXY TCP4 192.0.2.1 192.0.2.2 40000 443\r\n", at most 107 bytes
//!
//! version 2   0          12                13               14       16          16 + addresses   16 + length
//!             | signature | version command | family transp. | length | addresses | TLVs ...       |
//! ```
//!
//! A checksum (`PP2_TYPE_CRC32C`), which a sender may add, must be right.

use crate::error::ProxyProtocolError;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Most bytes of a version 1 header, CRLF included.
pub const V1_BYTES_MAX: usize = 107;
/// Most bytes of a version 2 header, TLVs included; the limit of nginx.
pub const V2_BYTES_MAX: usize = 4096;

const V1_SIGNATURE: &[u8] = b"PROXY ";
const V2_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of a version 2 header before its addresses.
const V2_FIXED_BYTES: usize = 16;
/// Bytes of two UNIX socket addresses.
const UNIX_BYTES: usize = 216;

/// A version 1 header of a connection of the sender itself, such as a health check.
pub const V1_LOCAL: &[u8] = b"PROXY UNKNOWN\r\n";
/// A version 2 header of a connection of the sender itself (`LOCAL`).
pub const V2_LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// `PP2_TYPE_CRC32C`
const TLV_CHECKSUM: u8 = 0x03;
const CHECKSUM_BYTES: usize = 4;
/// `PP2_TYPE_AUTHORITY`
const TLV_AUTHORITY: u8 = 0x02;
/// `PP2_TYPE_SSL`
const TLV_TLS: u8 = 0x20;
/// `PP2_SUBTYPE_SSL_CN`, inside [`TLV_TLS`]
const TLV_COMMON_NAME: u8 = 0x22;
/// `PP2_CLIENT_SSL`: the client came over TLS.
const CLIENT_TLS: u8 = 0x01;
/// `PP2_CLIENT_CERT_CONN` and `PP2_CLIENT_CERT_SESS`: it presented a certificate, on this connection or in the TLS
/// session.
const CLIENT_CERTIFICATE: u8 = 0x06;

/// The result of parsing the first bytes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHeader<'b> {
    /// All bytes belong to a header that is incomplete.
    Partial,
    /// The header is complete; bytes behind it are the connection's own.
    Complete {
        /// Length of the header in bytes.
        len: usize,
        /// Source and destination of the forwarded connection. `None`: the connection is the sender's own (`LOCAL`), or
        /// of a kind without such addresses (`UNKNOWN`, `UNSPEC`, UNIX sockets); then the socket's addresses count.
        addresses: Option<(SocketAddr, SocketAddr)>,
        /// The TLS connection of the client, if it had one and version 2 describes it.
        tls: Option<ClientTls<'b>>,
        /// The host name that the client requested, by SNI usually.
        authority: Option<&'b [u8]>,
    },
}

/// The sender's description of its client's TLS connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientTls<'b> {
    /// The client presented a certificate, and the sender found it valid.
    pub verified: bool,
    /// The common name in that certificate, verified or not.
    pub common_name: Option<&'b [u8]>,
}

/// Parses all bytes that have arrived so far, including those behind the header. Once the result is not
/// [`ProxyHeader::Partial`], more bytes do not change it.
///
/// # Errors
/// If they are not the beginning of a header.
pub fn parse(bytes: &[u8]) -> Result<ProxyHeader<'_>, ProxyProtocolError> {
    let Some(first) = bytes.first() else { return Ok(ProxyHeader::Partial) };
    let is_v1 = *first == V1_SIGNATURE[0];
    let signature = if is_v1 { V1_SIGNATURE } else { V2_SIGNATURE };
    let there = bytes.len().min(signature.len());
    if bytes[..there] != signature[..there] {
        return Err(ProxyProtocolError::Signature);
    }
    match (there < signature.len(), is_v1) {
        (true, _) => Ok(ProxyHeader::Partial),
        (false, true) => parse_v1(bytes),
        (false, false) => parse_v2(bytes),
    }
}

fn parse_v1(bytes: &[u8]) -> Result<ProxyHeader<'_>, ProxyProtocolError> {
    let window = &bytes[..bytes.len().min(V1_BYTES_MAX)];
    let unfinished =
        if window.len() < V1_BYTES_MAX { Ok(ProxyHeader::Partial) } else { Err(ProxyProtocolError::LineTooLong) };
    let Some(end) = memchr::memchr2(b'\r', b'\n', window) else { return unfinished };
    match window[end..] {
        [b'\r'] => return unfinished,
        [b'\r', b'\n', ..] => {}
        _ => return Err(ProxyProtocolError::LineEnd),
    }
    let addresses = v1_addresses(&window[V1_SIGNATURE.len()..end])?;
    Ok(ProxyHeader::Complete { len: end + 2, addresses, tls: None, authority: None })
}

fn v1_addresses(line: &[u8]) -> Result<Option<(SocketAddr, SocketAddr)>, ProxyProtocolError> {
    let mut words = line.split(|&byte| byte == b' ');
    let address: fn(&str) -> Option<IpAddr> = match words.next() {
        // Everything that follows must be ignored.
        Some(b"UNKNOWN") => return Ok(None),
        Some(b"TCP4") => |word| word.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        Some(b"TCP6") => |word| word.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        _ => return Err(ProxyProtocolError::Protocol),
    };
    let mut word = || words.next().ok_or(ProxyProtocolError::FieldCount);
    let (source, destination, source_port, destination_port) = (word()?, word()?, word()?, word()?);
    if words.next().is_some() {
        return Err(ProxyProtocolError::FieldCount);
    }
    let address = |word| str::from_utf8(word).ok().and_then(address).ok_or(ProxyProtocolError::Address);
    let (source, destination) = (address(source)?, address(destination)?);
    Ok(Some((SocketAddr::new(source, v1_port(source_port)?), SocketAddr::new(destination, v1_port(destination_port)?))))
}

fn v1_port(word: &[u8]) -> Result<u16, ProxyProtocolError> {
    let is_decimal = word.iter().all(u8::is_ascii_digit) && (word.len() == 1 || !word.starts_with(b"0"));
    let text = str::from_utf8(word).ok().filter(|_| is_decimal);
    text.and_then(|text| text.parse().ok()).ok_or(ProxyProtocolError::Port)
}

fn parse_v2(bytes: &[u8]) -> Result<ProxyHeader<'_>, ProxyProtocolError> {
    let Some(&version_and_command) = bytes.get(12) else { return Ok(ProxyHeader::Partial) };
    if version_and_command >> 4 != 2 {
        return Err(ProxyProtocolError::Version);
    }
    let is_local = match version_and_command & 0xf {
        0 => true,
        1 => false,
        _ => return Err(ProxyProtocolError::Command),
    };
    let Some(&family) = bytes.get(13) else { return Ok(ProxyHeader::Partial) };
    // Streams and datagrams alike: a balancer that speaks HTTP/3 to its clients may report that.
    let address_bytes = match family {
        _ if is_local => 0,
        0x00 => 0,
        0x11 | 0x12 => 2 * (4 + 2),
        0x21 | 0x22 => 2 * (16 + 2),
        0x31 | 0x32 => UNIX_BYTES,
        _ => return Err(ProxyProtocolError::Family),
    };
    let Some(&[high, low]) = bytes.get(14..V2_FIXED_BYTES) else { return Ok(ProxyHeader::Partial) };
    let len = V2_FIXED_BYTES + usize::from(u16::from_be_bytes([high, low]));
    if len > V2_BYTES_MAX {
        return Err(ProxyProtocolError::HeaderTooLong);
    }
    if len < V2_FIXED_BYTES + address_bytes {
        return Err(ProxyProtocolError::AddressLength);
    }
    let Some(payload) = bytes.get(V2_FIXED_BYTES..len) else { return Ok(ProxyHeader::Partial) };
    if address_bytes == 0 {
        return Ok(ProxyHeader::Complete { len, addresses: None, tls: None, authority: None });
    }
    let (tls, authority) = connection_tlvs(&bytes[..len], V2_FIXED_BYTES + address_bytes)?;
    Ok(ProxyHeader::Complete { len, addresses: v2_addresses(&payload[..address_bytes]), tls, authority })
}

/// The addresses of a block whose length matches its family.
fn v2_addresses(block: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    if let Some((&[a, b, c, d, e, f, g, h], ports)) = block.split_first_chunk()
        && let &[source_high, source_low, destination_high, destination_low] = ports
    {
        let source = (Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([source_high, source_low]));
        let destination = (Ipv4Addr::new(e, f, g, h), u16::from_be_bytes([destination_high, destination_low]));
        return Some((source.into(), destination.into()));
    }
    let (source, rest) = block.split_first_chunk::<16>()?;
    let (destination, ports) = rest.split_first_chunk::<16>()?;
    let &[source_high, source_low, destination_high, destination_low] = ports else { return None };
    let source = (Ipv6Addr::from(*source), u16::from_be_bytes([source_high, source_low]));
    let destination = (Ipv6Addr::from(*destination), u16::from_be_bytes([destination_high, destination_low]));
    Some((source.into(), destination.into()))
}

/// The TLVs of a complete header: the client's TLS, and the name it requested.
fn connection_tlvs(
    header: &[u8],
    addresses_end: usize,
) -> Result<(Option<ClientTls<'_>>, Option<&[u8]>), ProxyProtocolError> {
    let (mut tls, mut authority, mut checksum) = (None, None, None);
    let mut tlvs = &header[addresses_end..];
    while let Some((kind, value)) = next_tlv(&mut tlvs)? {
        match kind {
            TLV_TLS => once(&mut tls, value)?,
            TLV_AUTHORITY => once(&mut authority, value)?,
            TLV_CHECKSUM => {
                once(&mut checksum, value)?;
                check_sum(header, header.len() - tlvs.len() - value.len(), value)?;
            }
            _ => {}
        }
    }
    Ok((tls.map(client_tls).transpose()?.flatten(), authority))
}

/// Checks the sum, which is that of the header with zeros in its own place, at `at`.
fn check_sum(header: &[u8], at: usize, value: &[u8]) -> Result<(), ProxyProtocolError> {
    let expected = u32::from_be_bytes(value.try_into().map_err(|_| ProxyProtocolError::ChecksumLength)?);
    let sum = crc32c([&header[..at], &[0; CHECKSUM_BYTES], &header[at + CHECKSUM_BYTES..]]);
    if sum == expected { Ok(()) } else { Err(ProxyProtocolError::Checksum) }
}

/// Refuses a repeated TLV: two parties could use one each.
fn once<'b>(place: &mut Option<&'b [u8]>, value: &'b [u8]) -> Result<(), ProxyProtocolError> {
    place.replace(value).map_or(Ok(()), |_| Err(ProxyProtocolError::TlvRepeated))
}

fn client_tls(value: &[u8]) -> Result<Option<ClientTls<'_>>, ProxyProtocolError> {
    let Some((&[client, verify @ ..], mut tlvs)) = value.split_first_chunk::<5>() else {
        return Err(ProxyProtocolError::TlsLength);
    };
    let mut common_name = None;
    while let Some((kind, value)) = next_tlv(&mut tlvs)? {
        if kind == TLV_COMMON_NAME {
            once(&mut common_name, value)?;
        }
    }
    // Without a certificate `verify` may be zero too.
    let verified = client & CLIENT_CERTIFICATE != 0 && verify == [0; 4];
    Ok((client & CLIENT_TLS != 0).then_some(ClientTls { verified, common_name }))
}

/// Takes one TLV from the front: a byte of type, two of length, the value.
fn next_tlv<'b>(tlvs: &mut &'b [u8]) -> Result<Option<(u8, &'b [u8])>, ProxyProtocolError> {
    if tlvs.is_empty() {
        return Ok(None);
    }
    let (&[kind, high, low], rest) = tlvs.split_first_chunk().ok_or(ProxyProtocolError::TlvOverrun)?;
    let (value, rest) =
        rest.split_at_checked(usize::from(u16::from_be_bytes([high, low]))).ok_or(ProxyProtocolError::TlvOverrun)?;
    *tlvs = rest;
    Ok(Some((kind, value)))
}

/// Appends a version 1 header. Addresses of different families are both written as IPv6.
pub fn write_v1(source: SocketAddr, destination: SocketAddr, out: &mut Vec<u8>) {
    let (protocol, from, to) = match same_family(source, destination) {
        AddressPair::Ip4(from, to) => ("TCP4", from.to_string(), to.to_string()),
        AddressPair::Ip6(from, to) => ("TCP6", from.to_string(), to.to_string()),
    };
    let line = format!("PROXY {protocol} {from} {to} {} {}\r\n", source.port(), destination.port());
    out.extend_from_slice(line.as_bytes());
}

/// Appends a version 2 header without TLVs. Addresses of different families are both written as IPv6.
pub fn write_v2(source: SocketAddr, destination: SocketAddr, out: &mut Vec<u8>) {
    out.extend_from_slice(V2_SIGNATURE);
    match same_family(source, destination) {
        AddressPair::Ip4(from, to) => {
            out.extend_from_slice(&[0x21, 0x11, 0, 12]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
        }
        AddressPair::Ip6(from, to) => {
            out.extend_from_slice(&[0x21, 0x21, 0, 36]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
        }
    }
    out.extend_from_slice(&source.port().to_be_bytes());
    out.extend_from_slice(&destination.port().to_be_bytes());
}

enum AddressPair {
    Ip4(Ipv4Addr, Ipv4Addr),
    Ip6(Ipv6Addr, Ipv6Addr),
}

/// IPv4 if both are, including IPv4 addresses inside IPv6 as a socket of both families reports them.
fn same_family(source: SocketAddr, destination: SocketAddr) -> AddressPair {
    let wide = |ip| match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    match (source.ip().to_canonical(), destination.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => AddressPair::Ip4(from, to),
        (from, to) => AddressPair::Ip6(wide(from), wide(to)),
    }
}

// The checksum of the PROXY protocol: CRC-32C (Castagnoli), as in RFC 3720 appendix B.4.
//
// A table of 256 entries is enough for a header of a few dozen bytes once a connection.

/// The polynomial, reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const TABLE: [u32; 256] = table();

/// The checksum of these parts, one after the other.
pub(crate) fn crc32c(parts: [&[u8]; 3]) -> u32 {
    let step = |crc: u32, byte: &u8| TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8;
    !parts.into_iter().flatten().fold(!0, step)
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let (mut crc, mut bit) = (index as u32, 0);
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720 appendix B.4, and the check value in catalogues of CRCs.
    #[test]
    fn known_sums() {
        let ascending: Vec<u8> = (0..32).collect();
        for (bytes, expected) in [
            (&b"123456789"[..], 0xe306_9283),
            (&[0; 32], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
            (b"", 0),
        ] {
            assert_eq!(crc32c([bytes, b"", b""]), expected);
            let (a, b) = bytes.split_at(bytes.len() / 2);
            assert_eq!(crc32c([a, b"", b]), expected);
        }
    }
}
