//! Watches on the wire: what a client asks for, the frames of the event stream, and the id
//! that brings a later call to the node that serves the watch.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    ids::{MemberId, Revision},
    wire::Problem,
};

/// Names of the frames: the `event` field of the stream.
pub mod frame {
    #![allow(missing_docs)]
    pub const OPEN: &str = "open";
    pub const STEP: &str = "step";
    pub const SAME: &str = "same";
    pub const ERROR: &str = "error";
    pub const MOVED: &str = "moved";
    pub const RELOAD: &str = "reload";
}

/// The member that serves a watch, and a number that nobody guesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId {
    /// Who serves it.
    pub member: MemberId,
    /// Which of its watches.
    pub number: u128,
}

impl fmt::Display for WatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:032x}", self.member, self.number)
    }
}

impl FromStr for WatchId {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            let shown: String = text.chars().take(64).collect();
            format!("'{shown}' is not the id of a watch")
        };
        let (member, number) = text.split_once('-').ok_or_else(bad)?;
        let digits = number.len() == 32 && number.bytes().all(|b| b.is_ascii_hexdigit());
        Ok(Self {
            member: member.parse().map_err(|_| bad())?,
            number: u128::from_str_radix(number, 16)
                .ok()
                .filter(|_| digits)
                .ok_or_else(bad)?,
        })
    }
}

/// Body of `POST /watch`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// What is watched.
    pub queries: Vec<Query>,
}

/// Body of `PATCH /watch/{id}`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Ids of queries that are no longer watched; taken before what is added.
    #[serde(default)]
    pub remove: Vec<String>,
    /// What is watched from now on.
    #[serde(default)]
    pub add: Vec<Query>,
}

/// One watched query.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Query {
    /// What its changes are told under; its place in the list when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The function.
    pub name: String,
    /// Its arguments; none when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Box<RawValue>>,
    /// Of the result that the client has already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
}

/// `open`: the watch is there; its queries follow in the first step.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Opened {
    /// Its id.
    pub watch: String,
    /// Revision that the client goes on from: that of its `Last-Event-ID`, else 0.
    pub revision: Revision,
}

/// `step`: all queries of the watch are now as of `to`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Step {
    /// Revision that the client was told last, by a step, `same` or `open`.
    pub from: Revision,
    /// Revision of every result now.
    pub to: Revision,
    /// Results that differ from what the client has.
    pub changes: Vec<Changed>,
}

/// One result that changed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Changed {
    /// Id of the query.
    pub q: String,
    /// Of the result.
    pub etag: String,
    /// The result.
    pub value: Box<RawValue>,
}

/// `same`: no result has changed up to `to`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Same {
    /// Revision.
    pub to: Revision,
}

/// `error`: with `q`, the query has no result as of `to`; without, the watch ends.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Failed {
    /// Id of the query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub q: Option<String>,
    /// Revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Revision>,
    /// Why.
    pub problem: Problem,
}

/// `moved`: the watch ends here and goes on at another node.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Moved {
    /// Why, for people.
    pub why: String,
    /// How long to wait before; so that not all come at once.
    pub retry_ms: u64,
}

/// `reload`: another deployment answers from here on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Reload {
    /// Its hash.
    pub deployment: String,
}

/// Answer to `PATCH /watch/{id}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Patched {
    /// Id of the watch.
    pub watch: String,
    /// How many queries it has now.
    pub queries: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip_and_anything_else_is_refused() {
        let id = WatchId {
            member: MemberId(0xab),
            number: 7,
        };
        assert_eq!(id.to_string().parse::<WatchId>().unwrap(), id);
        let long = format!("{id}0");
        for bad in [
            "",
            "-",
            "00000000000000ab",
            "00000000000000ab-7",
            "x-y",
            &long,
        ] {
            assert!(bad.parse::<WatchId>().is_err(), "{bad}");
        }
        let signed = format!("00000000000000ab-+{:031x}", 7);
        assert!(signed.parse::<WatchId>().is_err());
    }

    #[test]
    fn bodies_say_what_they_do_not_know() {
        let open: Open =
            serde_json::from_str(r#"{"queries":[{"name":"a","args":{"x":1.0}}]}"#).unwrap();
        assert_eq!(open.queries[0].args.as_ref().unwrap().get(), r#"{"x":1.0}"#);
        assert!(serde_json::from_str::<Open>(r#"{"queries":[],"more":1}"#).is_err());
        assert!(serde_json::from_str::<Open>(r#"{"queries":[{"etag":1,"name":"a"}]}"#).is_err());
        assert!(serde_json::from_str::<Change>("{}").is_ok());
    }
}
