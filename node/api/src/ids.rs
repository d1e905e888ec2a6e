//! Identities. Each is a type of its own, so that a member id is never taken for a term.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a text is not an identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not {what}: {why}")]
pub struct BadId {
    text: String,
    what: &'static str,
    why: &'static str,
}

/// One life of a data directory; the Raft node id. A random 64-bit number that is never
/// reused with other data. Shown and sent as 16 hex digits, because JSON and Kubernetes
/// do not carry 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MemberId(pub u64);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MemberId {
    type Err = BadId;
    fn from_str(s: &str) -> Result<Self, BadId> {
        let bad = |why| BadId {
            text: s.chars().take(64).collect(),
            what: "a member id",
            why,
        };
        if s.len() != 16 || !s.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad("it must have 16 hex digits"));
        }
        u64::from_str_radix(s, 16)
            .map(Self)
            .map_err(|_| bad("it must have 16 hex digits"))
    }
}

impl From<u64> for MemberId {
    fn from(raw: u64) -> Self {
        Self(raw)
    }
}

impl Serialize for MemberId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() {
            s.collect_str(self)
        } else {
            s.serialize_u64(self.0)
        }
    }
}

impl<'de> Deserialize<'de> for MemberId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        if d.is_human_readable() {
            String::deserialize(d)?
                .parse()
                .map_err(serde::de::Error::custom)
        } else {
            u64::deserialize(d).map(Self)
        }
    }
}

impl JsonSchema for MemberId {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "MemberId".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^[0-9a-f]{16}$" })
    }
}

/// The identity of a cluster: minted once by whoever bootstraps it, kept on every volume.
/// It is not the uid of the FlowerCluster object, which changes when that is deleted and
/// applied again while the volumes stay.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct ClusterId(pub String);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A Raft group within the cluster; 0 is the first.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(transparent)]
pub struct GroupId(pub u32);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A tenant's data: the unit of order and atomicity. Only `_` exists for now.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct PartitionId(pub String);

impl PartitionId {
    /// The one partition that exists.
    pub const ROOT: &'static str = "_";
}

/// Position in a partition's order: drawn at admission, committed in that order, the same
/// on every replica; also the version of each record that the mutation wrote.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_ids_are_hex_in_json_and_refused_otherwise() {
        let id = MemberId(0xab);
        assert_eq!(serde_json::to_string(&id).unwrap(), "\"00000000000000ab\"");
        assert_eq!("00000000000000ab".parse::<MemberId>().unwrap(), id);
        for bad in [
            "",
            "ab",
            "00000000000000zz",
            "+0000000000000ab",
            "00000000000000abc",
        ] {
            assert!(bad.parse::<MemberId>().is_err(), "{bad}");
        }
    }
}
