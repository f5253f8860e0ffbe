//! Who must have issued a token, and for whom: the claims `iss` and `aud` (RFC 7519 sections 4.1.1 and 4.1.3).
//!
//! An issuer signs the tokens of all its clients with the same keys. So a signature alone does not say that a token was made for
//! this API.

use super::token::{Token, Value};

/// What a credential wants of both claims.
pub(super) struct ExpectedClaims {
    /// One of them is `iss`; empty: any.
    issuers: Box<[String]>,
    /// One of them is `aud`, or in it; empty: any.
    audiences: Box<[String]>,
}

impl ExpectedClaims {
    /// `None`: a token may have any.
    pub(super) fn new(issuers: Option<Vec<String>>, audiences: Option<Vec<String>>) -> Option<Box<ExpectedClaims>> {
        let (issuers, audiences) = (issuers.unwrap_or_default(), audiences.unwrap_or_default());
        let is_empty = issuers.is_empty() && audiences.is_empty();
        (!is_empty).then(|| Box::new(ExpectedClaims { issuers: issuers.into(), audiences: audiences.into() }))
    }

    /// Whether a token has them. One that has a claim twice has none.
    pub(super) fn are_in(&self, token: &Token<'_>) -> bool {
        let mut buffer = Vec::new();
        let Some([issuer, audience]) = token.issuer_and_audience(&mut buffer) else { return false };
        let is_issuer = |issuer: &str| self.issuers.iter().any(|known| known == issuer);
        let is_audience = |audience: &str| self.audiences.iter().any(|known| known == audience);
        let has_issuer = self.issuers.is_empty() || matches!(&issuer, Some(Value::Text(issuer)) if is_issuer(issuer));
        let has_audience = || match &audience {
            _ if self.audiences.is_empty() => true,
            Some(Value::Text(audience)) => is_audience(audience),
            Some(Value::Other) => {
                token.audiences().is_some_and(|audiences| audiences.iter().any(|one| is_audience(one)))
            }
            Some(Value::Number(_) | Value::False) | None => false,
        };
        has_issuer && has_audience()
    }
}
