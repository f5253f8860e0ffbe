//! Masks: texts that replace secrets in what is shown.

/// The text that an export and the Admin API show in place of a secret.
pub const MASK: &str = "********";

/// Whether a text is a mask, or has a mask in place of its secret part: an address, an expression or a certificate.
pub fn is_masked(text: &str) -> bool {
    const AROUND: [&str; 6] = ["://", "?********", "********@", "-----BEGIN ", "http.headers.", "http.queries."];
    text == MASK || text.contains(MASK) && AROUND.iter().any(|known| text.contains(known))
}
