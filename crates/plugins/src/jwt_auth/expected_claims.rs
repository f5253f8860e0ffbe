//! Expected issuers and audiences of tokens: the claims `iss` and `aud` (RFC 7519 sections 4.1.1 and 4.1.3).
//!
//! An issuer signs the tokens of all its clients with the same keys. So a signature alone does not prove that a token
//! was issued for this API.

use super::token::{ClaimValue, Token};

/// The values that a credential accepts for both claims.
pub(super) struct ExpectedClaims {
    /// `iss` must be one of them; empty: any.
    issuers: Box<[String]>,
    /// `aud` must be, or contain, one of them; empty: any.
    audiences: Box<[String]>,
}

impl ExpectedClaims {
    /// `None`: any token is accepted.
    pub(super) fn new(issuers: Option<Vec<String>>, audiences: Option<Vec<String>>) -> Option<Box<ExpectedClaims>> {
        let (issuers, audiences) = (issuers.unwrap_or_default(), audiences.unwrap_or_default());
        let is_empty = issuers.is_empty() && audiences.is_empty();
        (!is_empty).then(|| Box::new(ExpectedClaims { issuers: issuers.into(), audiences: audiences.into() }))
    }

    /// Whether a token satisfies them. A claim that occurs twice satisfies nothing.
    pub(super) fn are_in(&self, token: &Token<'_>) -> bool {
        let mut buffer = Vec::new();
        let Some([issuer, audience]) = token.issuer_and_audience(&mut buffer) else { return false };
        let is_issuer = |issuer: &str| self.issuers.iter().any(|known| known == issuer);
        let is_audience = |audience: &str| self.audiences.iter().any(|known| known == audience);
        let has_issuer =
            self.issuers.is_empty() || matches!(&issuer, Some(ClaimValue::Text(issuer)) if is_issuer(issuer));
        let has_audience = || match &audience {
            _ if self.audiences.is_empty() => true,
            Some(ClaimValue::Text(audience)) => is_audience(audience),
            Some(ClaimValue::Other) => {
                token.audiences().is_some_and(|audiences| audiences.iter().any(|one| is_audience(one)))
            }
            Some(ClaimValue::Number(_) | ClaimValue::False) | None => false,
        };
        has_issuer && has_audience()
    }
}
