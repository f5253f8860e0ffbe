//! One order: from the account to a certificate with its key, or to the reason for its failure.

use super::https::{self, Https, RetryAfter, Unusable};
use super::schedule::{self, SuggestionKey};
use super::storage::{self, AccountProblem};
use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, Error, ExternalAccountKey, Identifier, NewAccount,
    NewOrder, Order, OrderStatus, RetryPolicy,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stillgate_config::{Acme, AcmeChallenge, AcmeEab};
use stillgate_proxy::{Challenges, LiveChallenges, PlanCell};
use stillgate_tls::rustls::ClientConfig;
use tokio::task::spawn_blocking;
use tracing::{debug, warn};

/// How long the server may take to check the challenges, and then to issue the certificate.
const SERVER_TIMEOUT: Duration = Duration::from_secs(120);
/// The first pause between two polls of the server, and the increment of each further one.
const ASK_AGAIN: Duration = Duration::from_millis(250);
const ASK_LATER: f32 = 1.3;
/// The longest part of a server's error text that is kept; the response may be much longer.
const ERROR_BYTES_MAX: usize = 1024;

/// The step in which the account is loaded or created.
const ACCOUNT: &str = "the account";
/// The step in which the certificate is ordered.
const ORDERING: &str = "ordering";

/// The encoding of the key that a server gives out for external accounts. Some servers add padding, some trailing bits.
const HMAC_KEY: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// What an order needs besides its names.
pub(crate) struct Orderer {
    pub(crate) acme: Arc<Acme>,
    pub(crate) tls: Arc<ClientConfig>,
    pub(crate) plans: Arc<PlanCell>,
}

/// The reason why an order failed.
#[derive(Debug)]
pub(crate) struct OrderFailure {
    /// The step that failed.
    doing: &'static str,
    error: String,
    /// A suggestion for the reader; may be empty.
    hint: String,
    /// The pause that the server requests.
    pub(crate) retry_after: Option<Duration>,
    /// Why another account is needed.
    account: Option<AccountProblem>,
}

/// The account's file. Its folder determines the server.
#[derive(Serialize, Deserialize)]
struct AccountFile {
    email: Option<String>,
    credentials: AccountCredentials,
}

impl fmt::Display for OrderFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.hint.is_empty() { "" } else { "; " };
        let error = &self.error[..self.error.floor_char_boundary(ERROR_BYTES_MAX)];
        let cut = if error.len() < self.error.len() { "…" } else { "" };
        let text = format!("{}: {error}{cut}{separator}{}", self.doing, self.hint);
        // The server's text is untrusted; it must stay on its line.
        f.write_str(&text.replace(char::is_control, " "))
    }
}

impl OrderFailure {
    pub(crate) fn new(doing: &'static str, error: impl fmt::Display, hint: impl Into<String>) -> OrderFailure {
        let (error, hint) = (error.to_string(), hint.into());
        OrderFailure { doing, error, hint, retry_after: None, account: None }
    }

    fn of(doing: &'static str, error: &Error) -> OrderFailure {
        OrderFailure {
            retry_after: retry_after(error),
            account: is_of_type(error, "accountDoesNotExist").then_some(AccountProblem::Unknown),
            ..OrderFailure::new(doing, error, hint(error))
        }
    }
}

/// The live challenges of an order. They are removed when the order ends, with any result.
struct OrderChallenges<'a>(&'a Challenges);

impl Drop for OrderChallenges<'_> {
    fn drop(&mut self) {
        self.0.set(LiveChallenges::default());
    }
}

impl Orderer {
    /// Orders a certificate for these names. Returns the PEM of the certificate, its chain and its key. `replaces`: the certificate
    /// that the new one replaces, for the server's rate limits (RFC 9773 section 5).
    pub(crate) async fn order(
        &self,
        names: &[String],
        replaces: Option<&SuggestionKey>,
    ) -> Result<String, OrderFailure> {
        let told = RetryAfter::default();
        let mut failure = match self.order_certificate(names, replaces, &told).await {
            Ok(chain) => return Ok(chain),
            Err(failure) => failure,
        };
        failure.retry_after = failure.retry_after.or_else(|| https::take_retry_after(&told));
        if let Some(problem @ AccountProblem::Unknown) = failure.account {
            failure.hint = match self.set_account_aside(problem).await {
                Ok(_) => "the account's file was set aside; another account is made with the next try".to_owned(),
                Err(error) => error,
            };
        }
        Err(failure)
    }

    async fn order_certificate(
        &self,
        names: &[String],
        replaces: Option<&SuggestionKey>,
        told: &RetryAfter,
    ) -> Result<String, OrderFailure> {
        let account = self.account(told).await?;
        let begun = create_order(&account, names, replaces, told).await;
        let mut order = begun.map_err(|error| OrderFailure::of(ORDERING, &error))?;
        let answering = OrderChallenges(&self.plans.challenges);
        self.answer(&mut order, &answering).await?;
        drop(answering);
        let (key, request) =
            stillgate_tls::request(names).map_err(|error| OrderFailure::new("making a key", error, ""))?;
        let doing = "asking for the certificate";
        order.finalize_csr(&request).await.map_err(|error| OrderFailure::of(doing, &error))?;
        let chain = order.poll_certificate(&patience()).await;
        let chain = chain.map_err(|error| OrderFailure::of("waiting for the certificate", &error))?;
        Ok(format!("{}\n{}", chain.trim_end(), key))
    }

    /// Proves to the server that we control the names.
    async fn answer(&self, order: &mut Order, answering: &OrderChallenges<'_>) -> Result<(), OrderFailure> {
        let doing = "reading the order";
        let (kind, word) = match self.acme.challenge {
            AcmeChallenge::Http01 => (ChallengeType::Http01, "http-01"),
            AcmeChallenge::TlsAlpn01 => (ChallengeType::TlsAlpn01, "tls-alpn-01"),
        };
        let mut live = LiveChallenges::default();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(|error| OrderFailure::of(doing, &error))?;
            let name = authorization.identifier().to_string();
            match authorization.status {
                AuthorizationStatus::Pending => {}
                // It was proved recently.
                AuthorizationStatus::Valid => continue,
                status => {
                    return Err(OrderFailure::new(doing, format!("the authorization for {name} is {status:?}"), ""));
                }
            }
            let Some(challenge) = authorization.challenge(kind.clone()) else {
                let error = format!("the server offers no challenge {word} for {name}");
                return Err(OrderFailure::new(doing, error, "write another gateway.acme.challenge"));
            };
            let answer = challenge.key_authorization();
            if kind == ChallengeType::Http01 {
                live.http.insert(challenge.token.clone(), answer.as_str().to_owned());
                continue;
            }
            let digest = answer.digest();
            let digest = digest.as_ref().try_into().expect("SHA-256 has 32 bytes");
            let config = stillgate_tls::acme_challenge(&name, digest);
            live.tls.insert(name, config.map_err(|error| OrderFailure::new("preparing for tls-alpn-01", error, ""))?);
        }
        answering.0.set(live);
        let mut refused = None;
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(|error| OrderFailure::of(doing, &error))?;
            if authorization.status != AuthorizationStatus::Pending {
                continue;
            }
            // A server that has checked the challenge by now answers with its result at once.
            if let Some(mut challenge) = authorization.challenge(kind.clone())
                && let Err(error) = challenge.set_ready().await
            {
                refused = Some(error);
                break;
            }
        }
        if let Some(error) = refused {
            return Err(self.refused(order, word, Some(error)).await);
        }
        match order.poll_ready(&patience()).await {
            Ok(OrderStatus::Ready) => Ok(()),
            Ok(_) => Err(self.refused(order, word, None).await),
            Err(error) => Err(self.refused(order, word, Some(error)).await),
        }
    }

    /// Returns why the server rejected the challenge; its error is part of the challenge.
    async fn refused(&self, order: &mut Order, word: &str, error: Option<Error>) -> OrderFailure {
        let mut reasons = Vec::new();
        let mut authorizations = order.authorizations();
        while let Some(Ok(mut authorization)) = authorizations.next().await {
            let name = authorization.identifier().to_string();
            let Ok(state) = authorization.refresh().await else { continue };
            let problems = state.challenges.iter().filter_map(|challenge| challenge.error.as_ref());
            reasons.extend(problems.map(|problem| format!("{name}: {problem}")));
        }
        let port = if word == "http-01" { 80 } else { 443 };
        let hint = format!("the name must lead to this gateway, whose listener must be reached at port {port}");
        let reason = match (reasons.is_empty(), &error) {
            (false, _) => reasons.join(", "),
            (true, Some(error)) => error.to_string(),
            (true, None) => "the server gives no reason".to_owned(),
        };
        let failure = OrderFailure::new(
            "showing that the names are ours",
            format!("the challenge {word} failed: {reason}"),
            hint,
        );
        OrderFailure { retry_after: error.as_ref().and_then(retry_after), ..failure }
    }

    /// Loads the account of the folder; `None`: there is none. `or_after`: the pause assumed if the server does not request one.
    pub(crate) async fn known_account(&self, or_after: Duration) -> Result<Option<Account>, OrderFailure> {
        let Some(stored) = self.read_account().await? else { return Ok(None) };
        let https = self.https(&RetryAfter::default()).or_after(or_after);
        let builder = Account::builder_with_http(Box::new(https));
        let account = builder.from_credentials(stored.credentials).await;
        account.map(Some).map_err(|error| OrderFailure::of(ACCOUNT, &error))
    }

    fn https(&self, told: &RetryAfter) -> Https {
        Https::new(self.tls.clone(), told.clone())
    }

    async fn set_account_aside(&self, problem: AccountProblem) -> Result<PathBuf, String> {
        let acme = self.acme.clone();
        run_blocking(move || storage::set_account_aside(&acme, problem)).await
    }

    fn damaged(&self, error: impl fmt::Display) -> OrderFailure {
        let what = format!("{}: {error}", self.acme.account_file().display());
        let hint = match &self.acme.eab {
            Some(_) => {
                "mend it, or remove it: then another account is made, if the issuer binds it to gateway.acme.eab, too"
            }
            None => "another account is made with the next order",
        };
        OrderFailure { account: Some(AccountProblem::Damaged), ..OrderFailure::new(ACCOUNT, what, hint) }
    }

    async fn read_account(&self) -> Result<Option<AccountFile>, OrderFailure> {
        let acme = self.acme.clone();
        let text = run_blocking(move || storage::account(&acme))
            .await
            .map_err(|error| OrderFailure::new(ACCOUNT, error, ""))?;
        let stored = text.map(|text| serde_json::from_slice::<AccountFile>(&text)).transpose();
        // Without serde's message, which may quote the key.
        stored.map_err(|error| self.damaged(format!("it is cut off or unknown, at line {}", error.line())))
    }

    /// Loads the account of the folder, or registers and stores a new one. A damaged file is set aside, unless an issuer has bound
    /// the account to another: it may do that only once.
    async fn account(&self, told: &RetryAfter) -> Result<Account, OrderFailure> {
        let loaded = match self.read_account().await {
            Ok(None) => return self.register(told).await,
            Ok(Some(stored)) => self.load(stored, told).await,
            Err(failure) => Err(failure),
        };
        let failure = match loaded {
            Ok(account) => return Ok(account),
            Err(failure) => failure,
        };
        match failure.account {
            Some(problem @ AccountProblem::Damaged) if self.acme.eab.is_none() => {
                let aside = self.set_account_aside(problem).await;
                let aside = aside.map_err(|error| OrderFailure::new(ACCOUNT, error, ""))?;
                warn!(
                    "ACME: {}: {}; it is set aside as {}, and another account is made",
                    failure.doing,
                    failure.error,
                    aside.display()
                );
                self.register(told).await
            }
            _ => Err(failure),
        }
    }

    async fn register(&self, told: &RetryAfter) -> Result<Account, OrderFailure> {
        let contact = self.contact();
        let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
        let new = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
        let eab = self.acme.eab.as_ref().map(external_account).transpose()?;
        let builder = Account::builder_with_http(Box::new(self.https(told)));
        let made = builder.create(&new, self.acme.directory.clone(), eab.as_ref()).await;
        let (account, credentials) = made.map_err(|error| OrderFailure::of(ACCOUNT, &error))?;
        self.keep(credentials).await?;
        Ok(account)
    }

    async fn load(&self, stored: AccountFile, told: &RetryAfter) -> Result<Account, OrderFailure> {
        let (email, credentials) = (stored.email, stored.credentials);
        let copy = AccountCredentials::deserialize(serde_json::json!(credentials));
        let builder = Account::builder_with_http(Box::new(self.https(told)));
        let account = builder.from_credentials(credentials).await.map_err(|error| match error {
            Error::KeyRejected => self.damaged("its key cannot be read"),
            error => OrderFailure::of(ACCOUNT, &error),
        })?;
        if email != self.acme.email {
            let contact = self.contact();
            let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
            account.update_contacts(&contact).await.map_err(|error| OrderFailure::of(ACCOUNT, &error))?;
            self.keep(copy.map_err(|error| OrderFailure::new(ACCOUNT, error, ""))?).await?;
        }
        Ok(account)
    }

    fn contact(&self) -> Option<String> {
        self.acme.email.as_ref().map(|email| format!("mailto:{email}"))
    }

    async fn keep(&self, credentials: AccountCredentials) -> Result<(), OrderFailure> {
        let stored = AccountFile { email: self.acme.email.clone(), credentials };
        let text = serde_json::json!(stored).to_string();
        let acme = self.acme.clone();
        let kept = run_blocking(move || storage::store_account(&acme, text.as_bytes())).await;
        kept.map_err(|error| OrderFailure::new("keeping the account", error, ""))
    }
}

/// Creates an order that replaces a certificate, which some servers count less. If the server refuses that, the order is created
/// without `replaces`: the server may not know the certificate, may have seen it replaced already, or may have issued it to another
/// account.
async fn create_order(
    account: &Account,
    names: &[String],
    replaces: Option<&SuggestionKey>,
    told: &RetryAfter,
) -> Result<Order, Error> {
    let identifiers: Vec<_> = names.iter().cloned().map(Identifier::Dns).collect();
    if let Some(key) = replaces {
        match account.new_order(&NewOrder::new(&identifiers).replaces(schedule::certificate_identifier(key))).await {
            Err(error) if is_of_replacing(&error) => {
                debug!("ACME: not as a replacement: {}", OrderFailure::of(ORDERING, &error));
                // That pause was about the refused order.
                https::take_retry_after(told);
            }
            result => return result,
        }
    }
    account.new_order(&NewOrder::new(&identifiers)).await
}

/// Whether the order may be created without `replaces`.
fn is_of_replacing(error: &Error) -> bool {
    match error {
        // The server would refuse these again.
        Error::Api(_) => !is_of_type(error, "rateLimited") && !is_of_type(error, "accountDoesNotExist"),
        Error::Unsupported(_) => true,
        // The response was an order, although one without `replaces`.
        Error::Other(error) => !error.is::<Unusable>(),
        _ => false,
    }
}

/// Runs file operations on another thread, since the control loop must not block.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    match spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(format!("this is a bug: {error}")),
    }
}

fn external_account(eab: &AcmeEab) -> Result<ExternalAccountKey, OrderFailure> {
    let key = HMAC_KEY.decode(&eab.hmac_key.0);
    let key = key.map_err(|error| OrderFailure::new("gateway.acme.eab.hmac_key", error, "copy it again"))?;
    Ok(ExternalAccountKey::new(eab.kid.clone(), &key))
}

fn patience() -> RetryPolicy {
    RetryPolicy::new().initial_delay(ASK_AGAIN).backoff(ASK_LATER).timeout(SERVER_TIMEOUT)
}

/// Whether the error has this type of RFC 8555 section 6.7.
fn is_of_type(error: &Error, name: &str) -> bool {
    let kind = match error {
        Error::Api(problem) => problem.r#type.as_deref(),
        _ => None,
    };
    kind.and_then(|kind| kind.strip_prefix("urn:ietf:params:acme:error:")) == Some(name)
}

/// The requested pause, if it is longer than we wait within an order.
fn retry_after(error: &Error) -> Option<Duration> {
    match error {
        Error::Timeout(Some(at)) => Some(at.saturating_duration_since(Instant::now())),
        _ => None,
    }
}

fn hint(error: &Error) -> &'static str {
    let hints = [
        ("externalAccountRequired", "write gateway.acme.eab with what the issuer gave you for it"),
        ("rateLimited", "it is tried again when the server allows it"),
        ("rejectedIdentifier", "the issuer gives out no certificate for such a name"),
        ("caa", "a CAA record in DNS forbids it to this issuer"),
        ("invalidContact", "mend gateway.acme.email"),
        ("unsupportedContact", "mend gateway.acme.email"),
        ("userActionRequired", "the issuer wants something done by hand, see the message"),
        ("badNonce", "is another gateway using the account with a folder of its own?"),
    ];
    let hint = hints.iter().find(|(name, _)| is_of_type(error, name)).map(|(_, hint)| *hint);
    match error {
        Error::Timeout(after) if after.is_some_and(|after| after > Instant::now()) => "the server asks for patience",
        _ => hint.unwrap_or(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::renewal::tests::{plans, tls};
    use stillgate_config::HmacKey;

    #[test]
    fn a_failure_is_one_line_that_says_what_to_do() {
        let failure = OrderFailure::new("ordering", "no\r\nway\u{1b}[2J", "do this");
        assert_eq!(failure.to_string(), "ordering: no  way [2J; do this");
        assert_eq!(OrderFailure::new("a", "b", "").to_string(), "a: b");
        // A server's text may be long; our hint after it stays readable.
        let failure = OrderFailure::new("a", "ü".repeat(100_000), "do this").to_string();
        assert_eq!(failure.len(), ERROR_BYTES_MAX + "a: …; do this".len());
        assert!(failure.ends_with("ü…; do this"));
    }

    #[tokio::test]
    async fn a_damaged_account_is_set_aside_unless_it_is_bound_to_another() {
        let (_folder, mut acme) = storage::tests::storage();
        // Nobody listens there.
        acme.directory = "https://127.0.0.1:1/directory".to_owned();
        storage::prepare(&acme).unwrap();
        let eab = AcmeEab { kid: "k".into(), hmac_key: HmacKey("MTIz".to_owned()) };
        let contents: [&[u8]; 5] = [
            b"",
            b"{\"email\":null,\"credentials\":{\"id\":\"https://127.0.0.1:1/1\",\"key_pkc",
            b"\x00\xff\x80",
            &[b' '; 65 * 1024],
            br#"{"email": null, "credentials": {"id": "i", "key_pkcs8": "c2VjcmV0", "directory": "https://127.0.0.1:1/d"}}"#,
        ];
        for content in contents {
            for eab in [Some(eab.clone()), None] {
                let is_bound = eab.is_some();
                let acme = Arc::new(Acme { eab, ..acme.clone() });
                std::fs::write(acme.account_file(), content).unwrap();
                let aside = acme.folder().join("account.json.damaged");
                let orderer = Orderer { acme: acme.clone(), tls: tls(), plans: plans() };
                let told = orderer.account(&RetryAfter::default()).await.err().unwrap().to_string();
                assert_eq!(acme.account_file().exists(), is_bound, "{told}");
                match is_bound {
                    true => assert!(told.contains("mend it, or remove it: ") && !aside.exists(), "{told}"),
                    false => {
                        assert!(told.contains("cannot connect"), "{told}");
                        assert_eq!(std::fs::read(&aside).unwrap(), content);
                        std::fs::remove_file(aside).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn a_server_that_asks_for_patience_is_left_alone() {
        let at = Instant::now() + Duration::from_secs(3600);
        let after = OrderFailure::of("waiting", &Error::Timeout(Some(at))).retry_after.unwrap();
        assert!(after > Duration::from_secs(3300) && after <= Duration::from_secs(3600), "{after:?}");
        assert_eq!(OrderFailure::of("waiting", &Error::Timeout(None)).retry_after, None);
        assert_eq!(OrderFailure::of("waiting", &Error::Crypto).retry_after, None);
    }

    #[test]
    fn keys_of_external_accounts_are_taken_as_issuers_write_them() {
        let check = |key: &str, good: bool| {
            let eab = AcmeEab { kid: "k".into(), hmac_key: HmacKey(key.to_owned()) };
            assert_eq!(external_account(&eab).is_ok(), good, "{key}");
        };
        check("zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W", true);
        // The Base64 of two bytes with trailing bits.
        check("-_9", true);
        check("+/8", false);
    }
}
