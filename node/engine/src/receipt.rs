//! Receipts: the stored outcome of a mutation under its idempotency key, written in the same
//! patch as the effects. Pure functions over a [`View`]; time is an argument. Which mutation
//! runs when is the lane's business, not this module's.

use std::{fmt, ops::Bound, str::FromStr};

use bytes::Bytes;
use flower_api::{
    Revision,
    limits::{KEY_CHARS, RECEIPT_RESULT_BYTES},
    wire::{Problem, code},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    error::ViewError,
    key::{Space, meta},
    view::{Direction, PatchBuilder, View},
};

/// Format of receipts on disk; the byte after the revision.
const FORMAT: u8 = 1;

/// An idempotency key: 1 to 255 printable ASCII characters without spaces.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The time inside a UUIDv7, milliseconds since 1970; absent for any other key.
    pub fn time_ms(&self) -> Option<u64> {
        // Only the hyphenated form is taken for a UUID; other forms are plain text.
        if self.0.len() != 36 {
            return None;
        }
        let id = uuid::Uuid::try_parse(&self.0).ok()?;
        if id.get_version_num() != 7 {
            return None;
        }
        let (seconds, nanos) = id.get_timestamp()?.to_unix();
        Some(seconds.saturating_mul(1_000) + u64::from(nanos) / 1_000_000)
    }
}

impl FromStr for IdempotencyKey {
    type Err = Box<Problem>;
    fn from_str(text: &str) -> Result<Self, Box<Problem>> {
        let printable = text.bytes().all(|b| (0x21..=0x7e).contains(&b));
        if text.is_empty() || text.len() > KEY_CHARS || !printable {
            return Err(Box::new(Problem::new(
                400,
                code::MALFORMED,
                "Malformed idempotency key",
                format!(
                    "Idempotency-Key must be 1 to {KEY_CHARS} printable ASCII characters \
                     without spaces; send a UUIDv7"
                ),
            )));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whose key it is: partition and subject. The same key of another subject is another key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// Partition.
    pub partition: String,
    /// Subject of the token. No part may hold NUL; see [`Scope::record_key`].
    pub subject: String,
}

impl Scope {
    /// Key of the receipt's record: partition NUL subject NUL key.
    ///
    /// # Panics
    /// When partition or subject hold NUL: both are chosen by the node, never by a client.
    pub fn record_key(&self, key: &IdempotencyKey) -> Bytes {
        assert!(
            !self.partition.contains('\0') && !self.subject.contains('\0'),
            "scopes hold no NUL"
        );
        Bytes::from(format!("{}\0{}\0{key}", self.partition, self.subject))
    }
}

/// What a key stands for: one mutation with one set of arguments, whatever the order of
/// their fields and the white space between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint([u8; 16]);

impl Fingerprint {
    /// The fingerprint of a call.
    ///
    /// # Errors
    /// When the arguments are not JSON.
    pub fn of(mutation: &str, args: &str) -> Result<Self, serde_json::Error> {
        let mut hash = Sha256::new();
        hash.update((mutation.len() as u64).to_be_bytes());
        hash.update(mutation);
        let mut text = String::with_capacity(args.len());
        canonical(&serde_json::from_str(args)?, &mut text);
        hash.update(text);
        let digest = hash.finalize();
        let mut short = [0; 16];
        short.copy_from_slice(&digest[..16]);
        Ok(Self(short))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl FromStr for Fingerprint {
    type Err = hex::FromHexError;
    fn from_str(text: &str) -> Result<Self, hex::FromHexError> {
        let mut short = [0; 16];
        hex::decode_to_slice(text, &mut short)?;
        Ok(Self(short))
    }
}

/// JSON with the fields of objects in order and no white space.
fn canonical(value: &serde_json::Value, out: &mut String) {
    match value {
        serde_json::Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                canonical(item, out);
            }
            out.push(']');
        }
        serde_json::Value::Object(fields) => {
            let mut names: Vec<&String> = fields.keys().collect();
            names.sort();
            out.push('{');
            for (i, name) in names.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                out.push_str(&serde_json::Value::String(name.clone()).to_string());
                out.push(':');
                canonical(&fields[name], out);
            }
            out.push('}');
        }
        plain => out.push_str(&plain.to_string()),
    }
}

/// How a mutation ended, as far as its receipt tells.
#[derive(Debug, Clone, PartialEq)]
pub enum Ended {
    /// With this result (JSON).
    Result(String),
    /// With a result that was too large to keep.
    ResultNotKept,
    /// With a declared fault.
    Fault(Box<Problem>),
}

/// A receipt.
#[derive(Debug, Clone, PartialEq)]
pub struct Receipt {
    /// Revision of the mutation.
    pub revision: Revision,
    /// The mutation's name.
    pub mutation: String,
    /// What the key stands for.
    pub fingerprint: Fingerprint,
    /// How it ended.
    pub ended: Ended,
    /// The stamp of the mutation, ms since 1970.
    pub created_ms: u64,
    /// Kept until then, ms since 1970.
    pub until_ms: u64,
}

/// How it ended, as stored. Problems are JSON text: their data is any JSON, and the
/// receipt's own encoding carries no type information.
#[derive(Serialize, Deserialize)]
enum StoredEnd {
    Result(String),
    ResultNotKept,
    Fault(String),
}

#[derive(Serialize, Deserialize)]
struct Stored {
    mutation: String,
    fingerprint: Fingerprint,
    ended: StoredEnd,
    created_ms: u64,
    until_ms: u64,
}

impl Receipt {
    /// For disk: revision, format byte, then postcard.
    ///
    /// # Panics
    /// Never: postcard into a growing vector does not fail for these types.
    fn encode(&self) -> Vec<u8> {
        let stored = Stored {
            mutation: self.mutation.clone(),
            fingerprint: self.fingerprint,
            ended: match &self.ended {
                Ended::Result(json) => StoredEnd::Result(json.clone()),
                Ended::ResultNotKept => StoredEnd::ResultNotKept,
                Ended::Fault(problem) => {
                    StoredEnd::Fault(serde_json::to_string(problem).expect("a problem is JSON"))
                }
            },
            created_ms: self.created_ms,
            until_ms: self.until_ms,
        };
        let mut out = self.revision.0.to_be_bytes().to_vec();
        out.push(FORMAT);
        postcard::to_extend(&stored, out).expect("postcard into a vector")
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, ViewError> {
        let bad = |why: String| ViewError(format!("a stored receipt is damaged: {why}"));
        let (revision, rest) = bytes
            .split_first_chunk::<8>()
            .ok_or_else(|| bad("it is too short".into()))?;
        let body = match rest.split_first() {
            Some((&FORMAT, body)) => body,
            Some((other, _)) => return Err(bad(format!("format {other} is unknown"))),
            None => return Err(bad("it is too short".into())),
        };
        let stored: Stored = postcard::from_bytes(body).map_err(|e| bad(e.to_string()))?;
        Ok(Self {
            revision: Revision(u64::from_be_bytes(*revision)),
            mutation: stored.mutation,
            fingerprint: stored.fingerprint,
            ended: match stored.ended {
                StoredEnd::Result(json) => Ended::Result(json),
                StoredEnd::ResultNotKept => Ended::ResultNotKept,
                StoredEnd::Fault(json) => {
                    Ended::Fault(serde_json::from_str(&json).map_err(|e| bad(e.to_string()))?)
                }
            },
            created_ms: stored.created_ms,
            until_ms: stored.until_ms,
        })
    }
}

/// What is kept of a result: the text, or the note that it was too large.
pub fn keep(result: &str) -> Ended {
    if result.len() as u64 > RECEIPT_RESULT_BYTES {
        Ended::ResultNotKept
    } else {
        Ended::Result(result.to_owned())
    }
}

/// Until when a receipt is kept: a retry with a UUIDv7 key is refused from key time plus
/// retention on, so the receipt must live that long, and that long after its creation.
pub fn until_ms(key: &IdempotencyKey, created_ms: u64, retention_ms: u64) -> u64 {
    floor_ms(key, created_ms).saturating_add(retention_ms)
}

/// The later of key time and creation.
fn floor_ms(key: &IdempotencyKey, created_ms: u64) -> u64 {
    key.time_ms().unwrap_or(0).max(created_ms)
}

/// Writes a receipt and its entry by age into the mutation's patch.
pub fn record(patch: &mut PatchBuilder, scope: &Scope, key: &IdempotencyKey, receipt: &Receipt) {
    let record_key = scope.record_key(key);
    let mut by_age = receipt.until_ms.to_be_bytes().to_vec();
    by_age.extend_from_slice(&record_key);
    let mut floor = receipt.revision.0.to_be_bytes().to_vec();
    floor.extend_from_slice(&floor_ms(key, receipt.created_ms).to_be_bytes());
    patch.put(Space::Receipts, record_key, receipt.encode());
    patch.put(Space::ReceiptsByAge, by_age, floor);
}

/// What is stored under a key.
///
/// # Errors
/// When the state cannot be read.
pub fn find(
    view: &dyn View,
    scope: &Scope,
    key: &IdempotencyKey,
) -> Result<Option<Receipt>, ViewError> {
    view.get(Space::Receipts, &scope.record_key(key))?
        .map(|bytes| Receipt::decode(&bytes))
        .transpose()
}

/// What to do with a call under a key, judged on everything ordered before it.
#[derive(Debug, Clone, PartialEq)]
pub enum Judged {
    /// Run it.
    New,
    /// Answer with what is stored.
    Replay(Receipt),
    /// Refuse it: the key stands for another call, or is too old.
    Refuse(Box<Problem>),
}

/// Judges a call under a key. A stored receipt answers whatever its age; a UUIDv7 without
/// one is refused when its receipt may have been trimmed.
///
/// # Errors
/// When the state cannot be read.
pub fn judge(
    view: &dyn View,
    scope: &Scope,
    key: &IdempotencyKey,
    fingerprint: Fingerprint,
    now_ms: u64,
    retention_ms: u64,
) -> Result<Judged, ViewError> {
    if let Some(receipt) = find(view, scope, key)? {
        return Ok(if receipt.fingerprint == fingerprint {
            Judged::Replay(receipt)
        } else {
            Judged::Refuse(Box::new(key_reused(key, &receipt.mutation)))
        });
    }
    let Some(time) = key.time_ms() else {
        return Ok(Judged::New);
    };
    let trimmed = trimmed_ms(view)?;
    let expired = time < now_ms.saturating_sub(retention_ms)
        || trimmed.is_some_and(|watermark| time <= watermark);
    Ok(if expired {
        Judged::Refuse(Box::new(key_expired(key, retention_ms)))
    } else {
        Judged::New
    })
}

/// The refusal of a key that stands for another call.
pub fn key_reused(key: &IdempotencyKey, mutation: &str) -> Problem {
    Problem::new(
        422,
        code::KEY_REUSED,
        "Key reused",
        format!(
            "key '{key}' stands for another call of '{mutation}', with other arguments or \
             another name; send a new key with a new call"
        ),
    )
}

fn key_expired(key: &IdempotencyKey, retention_ms: u64) -> Problem {
    Problem::new(
        410,
        code::KEY_EXPIRED,
        "Key expired",
        format!(
            "key '{key}' is older than receipts are kept ({} s): whether it ran is no longer \
             known, so it is not run now; look at the data, then call with a new key",
            retention_ms / 1_000
        ),
    )
    .setting("FLOWER_RECEIPT_RETENTION_MS")
}

/// The latest key time whose receipt may have been trimmed.
pub(crate) fn trimmed_ms(view: &dyn View) -> Result<Option<u64>, ViewError> {
    view.get(Space::Meta, meta::TRIMMED)?
        .map(|bytes| {
            <[u8; 8]>::try_from(&bytes[..])
                .map(u64::from_be_bytes)
                .map_err(|_| ViewError("the trim watermark is damaged".into()))
        })
        .transpose()
}

/// What one trim does.
#[derive(Debug, Clone, Default)]
pub struct Trim {
    /// Deletions and the new watermark; empty when nothing is due.
    pub patch: PatchBuilder,
    /// Receipts deleted.
    pub trimmed: u64,
    /// When the first receipt that is left falls due (ms since 1970), if any is.
    pub next_due_ms: Option<u64>,
}

/// Deletes receipts whose time was up at `cutoff_ms`, oldest first, at most `limit` of them,
/// and moves the watermark over their key times.
///
/// # Errors
/// When the state cannot be read.
pub fn trim(view: &dyn View, cutoff_ms: u64, limit: usize) -> Result<Trim, ViewError> {
    let mut out = Trim::default();
    let mut watermark = trimmed_ms(view)?;
    let mut damaged = false;
    view.scan(
        Space::ReceiptsByAge,
        Bound::Unbounded,
        Bound::Unbounded,
        Direction::Forward,
        &mut |key, value| {
            let (Some((until, record_key)), Some(floor)) =
                (key.split_first_chunk::<8>(), value.last_chunk::<8>())
            else {
                damaged = true;
                return false;
            };
            let until = u64::from_be_bytes(*until);
            if until > cutoff_ms || out.trimmed as usize >= limit {
                out.next_due_ms = Some(until);
                return false;
            }
            out.patch
                .delete(Space::Receipts, Bytes::copy_from_slice(record_key));
            out.patch
                .delete(Space::ReceiptsByAge, Bytes::copy_from_slice(key));
            out.trimmed += 1;
            watermark = watermark.max(Some(u64::from_be_bytes(*floor)));
            true
        },
    )?;
    if damaged {
        return Err(ViewError("the index of receipts by age is damaged".into()));
    }
    if let (true, Some(watermark)) = (out.trimmed > 0, watermark) {
        out.patch
            .put(Space::Meta, meta::TRIMMED, watermark.to_be_bytes().to_vec());
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
