//! Tokens for the client and admin APIs and the secrets that peers prove to each other: read
//! from a directory with the files `client`, `admin` and `peer`, each one token a line, and
//! read again when they change. Decides nothing about functions or partitions; that seam
//! (`allow` per function) is [`Subject`].

use std::{path::PathBuf, sync::Arc};

use arc_swap::ArcSwap;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

pub use flower_api::tokens::parse as tokens;

use crate::host::Host;

/// What peers on loopback prove to each other when no directory is given: any process of
/// this host could read it, as it could reach the ports.
const LOOPBACK_SECRET: &str = "flower-loopback-without-tokens";

/// What a token opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// Queries and mutations.
    Client,
    /// Everything under `/v1/admin`.
    Admin,
}

/// Who calls. All tokens of one kind are one subject, so that a rotation does not change the
/// scope of idempotency keys; identities of users come later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject(pub &'static str);

/// Why the tokens cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tokens in {} (FLOWER_AUTH_DIR): {why}", dir.display())]
pub struct BadTokens {
    dir: PathBuf,
    why: String,
}

/// A call without a token that opens this API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unauthenticated {
    /// No `Authorization: Bearer` header.
    #[error("send a token in the header 'Authorization: Bearer <token>'")]
    Missing,
    /// The token is not one of this API's.
    #[error(
        "this token is not among those that open this API; the node reads its tokens from its FLOWER_AUTH_DIR"
    )]
    Wrong,
}

/// SHA-256 of a token: of one length, so that comparing tells nothing of the token's.
type Hash = [u8; 32];

#[derive(Default, PartialEq, Eq)]
struct Sets {
    client: Vec<Hash>,
    admin: Vec<Hash>,
    peer: Vec<Arc<str>>,
}

/// How many there are; never what they are.
impl std::fmt::Debug for Sets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sets")
            .field("client", &self.client.len())
            .field("admin", &self.admin.len())
            .field("peer", &self.peer.len())
            .finish()
    }
}

/// The tokens in force now.
#[derive(Debug)]
pub struct Tokens {
    host: Host,
    dir: Option<PathBuf>,
    sets: ArcSwap<Sets>,
}

impl Tokens {
    /// No tokens: every call is let in. For a node that listens on loopback only.
    pub fn off() -> Self {
        let peer = vec![LOOPBACK_SECRET.into()];
        let sets = ArcSwap::from_pointee(Sets {
            peer,
            ..Sets::default()
        });
        Self {
            host: Host::default(),
            dir: None,
            sets,
        }
    }

    /// Reads the tokens of `dir`.
    ///
    /// # Errors
    /// `BadTokens` when a file is missing, empty, or holds what cannot be a token.
    pub fn open(host: Host, dir: impl Into<PathBuf>) -> Result<Self, BadTokens> {
        let dir = dir.into();
        let sets = ArcSwap::from_pointee(read(&host, &dir)?);
        Ok(Self {
            host,
            dir: Some(dir),
            sets,
        })
    }

    /// Reads the files again; true when the tokens changed. Call it every second: a mounted
    /// Secret changes by a symbolic link that is swapped, which few watchers see.
    ///
    /// # Errors
    /// `BadTokens`; those in force before stay so.
    pub fn reload(&self) -> Result<bool, BadTokens> {
        let Some(dir) = &self.dir else {
            return Ok(false);
        };
        let sets = read(&self.host, dir)?;
        let changed = sets != **self.sets.load();
        if changed {
            self.sets.store(Arc::new(sets));
        }
        Ok(changed)
    }

    /// Judges the value of the `Authorization` header.
    ///
    /// # Errors
    /// `Unauthenticated`, without a word of which tokens there are.
    pub fn authenticate(
        &self,
        api: Api,
        header: Option<&[u8]>,
    ) -> Result<Subject, Unauthenticated> {
        let subject = Subject(match api {
            Api::Client => "client",
            Api::Admin => "admin",
        });
        if self.dir.is_none() {
            return Ok(subject);
        }
        let token = header.and_then(bearer).ok_or(Unauthenticated::Missing)?;
        let presented = hash(token);
        let sets = self.sets.load();
        let known = match api {
            Api::Client => &sets.client,
            Api::Admin => &sets.admin,
        };
        // Every token is compared: the time tells nothing of which one fitted.
        let fits = known
            .iter()
            .fold(Choice::from(0), |any, token| any | token.ct_eq(&presented));
        if bool::from(fits) {
            Ok(subject)
        } else {
            Err(Unauthenticated::Wrong)
        }
    }

    /// The secrets that peers may prove; the first is the one that this node proves itself.
    pub fn peer_secrets(&self) -> Vec<Arc<str>> {
        self.sets.load().peer.clone()
    }
}

impl crate::consensus::PeerSecrets for Tokens {
    fn tokens(&self) -> Vec<Arc<str>> {
        self.peer_secrets()
    }
}

/// The token of a `Bearer` header; the scheme's case does not matter (RFC 9110).
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

fn hash(token: &[u8]) -> Hash {
    Sha256::digest(token).into()
}

fn read(host: &Host, dir: &std::path::Path) -> Result<Sets, BadTokens> {
    let lines = |file: &str| -> Result<Vec<String>, BadTokens> {
        let bad = |why: String| BadTokens {
            dir: dir.to_owned(),
            why: format!("file '{file}' {why}"),
        };
        let text = host
            .read(dir.join(file))
            .map_err(|e| bad(format!("cannot be read: {e}")))?;
        tokens(&text).map_err(bad)
    };
    let hashes = |lines: Vec<String>| lines.iter().map(|line| hash(line.as_bytes())).collect();
    Ok(Sets {
        client: hashes(lines("client")?),
        admin: hashes(lines("admin")?),
        peer: lines("peer")?.into_iter().map(Into::into).collect(),
    })
}

#[cfg(test)]
mod tests;
