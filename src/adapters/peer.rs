//! The client of a connection, and the token of those over TCP.

use std::path::Path;
use std::sync::Arc;

use ring::hmac;

/// The client of a connection.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    /// The user that the kernel reports; over TCP that of the daemon.
    pub(super) user: u32,
    /// Over TCP, the token that each request must carry.
    pub(super) token: Option<Arc<Token>>,
}

/// The digest of the token of `token_file`.
#[derive(Debug)]
pub(super) struct Token {
    key: hmac::Key,
    tag: hmac::Tag,
}

impl Peer {
    /// Whether a request with this token may be answered.
    pub(super) fn may_ask(&self, given: Option<&[u8]>) -> bool {
        self.token.as_ref().is_none_or(|token| given.is_some_and(|given| token.is(given)))
    }
}

impl Token {
    /// Reads the file, without white space around the token.
    pub(super) fn read(path: &Path) -> Result<Token, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let token = text.trim();
        if token.len() < TOKEN_BYTES_MIN {
            return Err(format!("{}: a token has at least {TOKEN_BYTES_MIN} bytes", path.display()));
        }
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &ring::rand::SystemRandom::new());
        let key = key.map_err(|_| "no random numbers".to_owned())?;
        let tag = hmac::sign(&key, token.as_bytes());
        Ok(Token { key, tag })
    }

    /// Compares in a time that does not depend on the token.
    fn is(&self, given: &[u8]) -> bool {
        hmac::verify(&self.key, given, self.tag.as_ref()).is_ok()
    }
}

const TOKEN_BYTES_MIN: usize = 16;
