//! The stored form of a password: the password itself, or a hash of it.

use argon2::{Argon2, Params, PasswordHash, PasswordVerifier};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use bcrypt::HashParts;
use stillgate_plugin::{CompileCredential, Secret};
use stillgate_schema::Fault;

/// A consumer's password.
pub(crate) enum Password {
    /// The password itself.
    Plain(Secret),
    /// A hash of it, which takes long to compare with.
    Hashed(Hash),
}

/// A hash in its text form.
pub(crate) enum Hash {
    Argon2(Secret),
    Bcrypt(Secret),
}

/// Prefixes of argon2 hashes.
const ARGON2: [&str; 3] = ["$argon2id$", "$argon2i$", "$argon2d$"];
const BCRYPT: [&str; 4] = ["$2a$", "$2b$", "$2x$", "$2y$"];

/// Most memory for comparing with a hash.
const ARGON2_MEMORY_KIB_MAX: u32 = 256 * 1024;
/// Most work for comparing with a hash, as memory times passes over it: a second or two.
const ARGON2_WORK_KIB_MAX: u64 = 1024 * 1024;
/// Most work for bcrypt: two to this power.
const BCRYPT_COST_MAX: u32 = 15;

impl Password {
    /// Parses a credential's password. A text that begins like a hash is one, or is refused.
    pub(super) fn new(password: Secret, cx: &mut CompileCredential<'_>) -> Option<Password> {
        let text = password.reveal();
        let begins = |starts: &[&str]| starts.iter().any(|start| text.starts_with(start));
        let checked = match (begins(&ARGON2), begins(&BCRYPT)) {
            (true, _) => check_argon2(text),
            (_, true) => check_bcrypt(text),
            _ => return Some(Password::Plain(password)),
        };
        if let Err(why) = checked {
            let fault = Fault::new(format!("the hash cannot be used: {why}"));
            cx.sink.error(cx.at, &cx.path.key("password"), fault.hint("make it again"));
            return None;
        }
        Some(Password::Hashed(if begins(&ARGON2) { Hash::Argon2(password) } else { Hash::Bcrypt(password) }))
    }
}

fn check_argon2(text: &str) -> Result<(), String> {
    let hash = PasswordHash::new(text).map_err(|error| error.to_string())?;
    if hash.hash.is_none() || hash.salt.is_none() {
        return Err("it has no salt or no hash".to_owned());
    }
    let params = Params::try_from(&hash).map_err(|error| error.to_string())?;
    let (memory, passes) = (params.m_cost(), params.t_cost());
    let work = u64::from(memory) * u64::from(passes);
    match memory <= ARGON2_MEMORY_KIB_MAX && work <= ARGON2_WORK_KIB_MAX {
        true => Ok(()),
        false => {
            Err(format!("it takes more than {ARGON2_MEMORY_KIB_MAX} KiB, or {ARGON2_WORK_KIB_MAX} KiB in all passes"))
        }
    }
}

fn check_bcrypt(text: &str) -> Result<(), String> {
    let parts: HashParts = text.parse().map_err(|error: bcrypt::BcryptError| error.to_string())?;
    match parts.get_cost() <= BCRYPT_COST_MAX {
        true => Ok(()),
        false => Err(format!("its cost is above {BCRYPT_COST_MAX}")),
    }
}

/// Whether two passwords are equal. The duration reveals only whether their lengths are.
pub(super) fn is_same(known: &Secret, password: &[u8]) -> bool {
    verify_slices_are_equal(known.reveal().as_bytes(), password).is_ok()
}

impl Hash {
    /// Whether it is the hash of a password. It takes milliseconds, and memory.
    pub(super) fn is_of(&self, password: &[u8]) -> bool {
        match self {
            Hash::Argon2(hash) => PasswordHash::new(hash.reveal())
                .is_ok_and(|hash| Argon2::default().verify_password(password, &hash).is_ok()),
            Hash::Bcrypt(hash) => bcrypt::verify(password, hash.reveal()).unwrap_or(false),
        }
    }
}
