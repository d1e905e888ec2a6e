//! What a query is known by, and what its result is known by.

use std::{fmt, str::FromStr, sync::Arc};

use bytes::Bytes;
use flower_api::wire::{Problem, code};
use flower_engine::ReadSet;
use sha2::{Digest, Sha256};

/// A query with its arguments, which are in canonical form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The function.
    pub name: Arc<str>,
    /// Its arguments.
    pub args: Arc<str>,
}

impl Key {
    /// Bytes of it.
    pub fn bytes(&self) -> u64 {
        (self.name.len() + self.args.len()) as u64
    }
}

/// The tag of a result: a hash of query, arguments and result. The deployment is left out: one
/// that changes no result makes no client fetch it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Etag([u8; 16]);

impl Etag {
    fn of(key: &Key, kind: &[u8], body: &[u8]) -> Self {
        let mut hash = Sha256::new();
        for part in [key.name.as_bytes(), key.args.as_bytes(), kind] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.update(body);
        let mut short = [0; 16];
        short.copy_from_slice(&hash.finalize()[..16]);
        Self(short)
    }
}

impl fmt::Display for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", hex::encode(self.0))
    }
}

impl FromStr for Etag {
    type Err = ();
    /// Also of its weak form, which compares alike.
    fn from_str(text: &str) -> Result<Self, ()> {
        let text = text.strip_prefix("W/").unwrap_or(text);
        let inner = text.strip_prefix('"').and_then(|t| t.strip_suffix('"'));
        let mut tag = [0; 16];
        hex::decode_to_slice(inner.ok_or(())?, &mut tag).map_err(|_| ())?;
        Ok(Self(tag))
    }
}

/// Whether a header `If-None-Match` names this tag. What is no tag of ours names nothing.
pub fn is_named(header: &str, etag: Etag) -> bool {
    let mut names = header.split(',').map(str::trim);
    names.any(|name| name == "*" || name.parse() == Ok(etag))
}

/// How an evaluation ended.
#[derive(Debug)]
pub struct Outcome {
    /// The result, JSON; or why there is none.
    pub result: Result<Bytes, Problem>,
    /// Of the result; of a problem, its own.
    pub etag: Etag,
    /// What was read; absent when nobody knows.
    pub reads: Option<Arc<ReadSet>>,
}

impl Outcome {
    /// Of an evaluation of `key`.
    pub fn new(key: &Key, result: Result<String, Problem>, reads: Option<ReadSet>) -> Self {
        let etag = match &result {
            Ok(json) => Etag::of(key, b"result", json.as_bytes()),
            Err(problem) => {
                let body = serde_json::to_vec(problem).unwrap_or_default();
                Etag::of(key, b"problem", &body)
            }
        };
        Self {
            result: result.map(Bytes::from),
            etag,
            reads: reads.map(Arc::new),
        }
    }

    /// Whether the time or a random number went into it.
    pub fn is_volatile(&self) -> bool {
        self.reads.as_ref().is_some_and(|reads| reads.clock)
    }

    /// Whether another attempt at the same state may end otherwise: a budget of time or memory
    /// was used up, or nobody knows what was read. What an application throws is thrown again.
    pub fn is_shaky(&self) -> bool {
        let problem = self.result.as_ref().err();
        problem.is_some_and(|p| p.code == code::BUDGET || (p.status >= 500 && self.reads.is_none()))
    }

    /// Whether every call that meets it is to have lines of its own in the log.
    pub fn is_logged(&self) -> bool {
        self.result.as_ref().is_err_and(|p| p.status >= 500)
    }

    /// Bytes of the result and of what was read.
    pub fn bytes(&self) -> u64 {
        let result = self.result.as_ref().map_or(1_024, Bytes::len) as u64;
        result + self.reads.as_ref().map_or(0, |reads| reads.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(args: &str) -> Key {
        Key {
            name: "q".into(),
            args: args.into(),
        }
    }

    #[test]
    fn tags_tell_results_apart_and_round_trip() {
        let tag = |args, result: &str| Outcome::new(&key(args), Ok(result.into()), None).etag;
        assert_eq!(tag("{}", "1"), tag("{}", "1"));
        assert_ne!(tag("{}", "1"), tag("{}", "2"));
        assert_ne!(tag("{}", "1"), tag("{\"a\":1}", "1"));
        let shown = tag("{}", "1").to_string();
        assert_eq!(shown.parse(), Ok(tag("{}", "1")));
        assert_eq!(format!("W/{shown}").parse(), Ok(tag("{}", "1")));
    }

    #[test]
    fn what_is_no_tag_of_ours_names_nothing() {
        let tag = Outcome::new(&key("{}"), Ok("1".into()), None).etag;
        let good = tag.to_string();
        assert!(is_named(&good, tag) && is_named("*", tag));
        assert!(is_named(&format!("\"x\", W/{good}"), tag));
        let cut = &good[..good.len() - 1];
        for bad in [
            "",
            "\"\"",
            "W/",
            "\"zz\"",
            cut,
            &good[1..],
            &good.replace('"', "'"),
            ",,,",
        ] {
            assert!(!is_named(bad, tag), "{bad}");
        }
    }
}
