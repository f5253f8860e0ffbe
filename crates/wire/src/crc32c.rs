//! The checksum of the PROXY protocol: CRC-32C (Castagnoli), as in RFC 3720 appendix B.4.
//!
//! A table of 256 entries is enough for a header of a few dozen bytes once a connection.

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
