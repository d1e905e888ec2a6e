//! Bytes that sort as the values do: null < false < true < numbers < texts. Texts sort by
//! code points. Also row ids, which sort in commit order.

use flower_api::Revision;
use serde_json::Value;

const NULL: u8 = 0x10;
const FALSE: u8 = 0x20;
const TRUE: u8 = 0x21;
const NUMBER: u8 = 0x30;
const TEXT: u8 = 0x40;
/// NUL inside a text; a text ends with NUL NUL.
const ESCAPED_NUL: [u8; 2] = [0, 0xff];

/// Appends a value. False for lists and objects, which have no place in an index.
#[must_use]
pub fn push(out: &mut Vec<u8>, value: &Value) -> bool {
    match value {
        Value::Null => out.push(NULL),
        Value::Bool(false) => out.push(FALSE),
        Value::Bool(true) => out.push(TRUE),
        Value::Number(n) => push_number(out, n.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => push_text(out, text),
        Value::Array(_) | Value::Object(_) => return false,
    }
    true
}

fn push_number(out: &mut Vec<u8>, number: f64) {
    out.push(NUMBER);
    // -0 and 0 are equal in JavaScript, so they share a place.
    let bits = if number == 0.0 { 0 } else { number.to_bits() };
    let negative = bits >> 63 == 1;
    let ordered = if negative { !bits } else { bits | 1 << 63 };
    out.extend_from_slice(&ordered.to_be_bytes());
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    out.push(TEXT);
    for &byte in text.as_bytes() {
        if byte == 0 {
            out.extend_from_slice(&ESCAPED_NUL);
        } else {
            out.push(byte);
        }
    }
    out.extend_from_slice(&[0, 0]);
}

/// Takes the value at the beginning of `bytes`; answers it and what follows. Absent for
/// bytes that [`push`] never writes.
pub fn pop(bytes: &[u8]) -> Option<(Value, &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    match tag {
        NULL => Some((Value::Null, rest)),
        FALSE => Some((Value::Bool(false), rest)),
        TRUE => Some((Value::Bool(true), rest)),
        NUMBER => {
            let (bits, rest) = rest.split_first_chunk::<8>()?;
            Some((number(u64::from_be_bytes(*bits))?, rest))
        }
        TEXT => {
            let (text, rest) = pop_text(rest)?;
            Some((Value::String(text), rest))
        }
        _ => None,
    }
}

fn number(ordered: u64) -> Option<Value> {
    let negative = ordered >> 63 == 0;
    let bits = if negative {
        !ordered
    } else {
        ordered & !(1 << 63)
    };
    let number = f64::from_bits(bits);
    if number.fract() == 0.0 && number.abs() <= crate::types::MAX_SAFE {
        return Some(Value::from(number as i64));
    }
    serde_json::Number::from_f64(number).map(Value::Number)
}

fn pop_text(mut bytes: &[u8]) -> Option<(String, &[u8])> {
    let mut text = Vec::new();
    loop {
        let nul = bytes.iter().position(|b| *b == 0)?;
        text.extend_from_slice(&bytes[..nul]);
        let end = *bytes.get(nul + 1)?;
        bytes = &bytes[nul + 2..];
        match end {
            0 => return Some((String::from_utf8(text).ok()?, bytes)),
            0xff => text.push(0),
            _ => return None,
        }
    }
}

/// The least key above every key that begins with `prefix`; absent when there is none.
pub fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let cut = prefix.iter().rposition(|&b| b != 0xff)?;
    let mut out = prefix[..=cut].to_vec();
    out[cut] += 1;
    Some(out)
}

/// Characters of a row id.
pub const ID_CHARS: usize = 16;
const REVISION_CHARS: usize = 12;
const ALPHABET: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
/// Ids that one revision can mint.
pub const IDS_PER_REVISION: u32 = 1 << 20;

/// The id of the `counter`th row that the mutation at `revision` inserts: 12 digits of the
/// revision and 4 of the counter, base 32, so that ids sort in commit order as texts.
/// Absent past [`IDS_PER_REVISION`] or 2^60 revisions.
pub fn mint_id(revision: Revision, counter: u32) -> Option<String> {
    if counter >= IDS_PER_REVISION || revision.0 >> 60 != 0 {
        return None;
    }
    let mut id = String::with_capacity(ID_CHARS);
    let digits = |number: u64, count: usize, id: &mut String| {
        for at in (0..count).rev() {
            id.push(ALPHABET[(number >> (5 * at) & 31) as usize] as char);
        }
    };
    digits(revision.0, REVISION_CHARS, &mut id);
    digits(u64::from(counter), ID_CHARS - REVISION_CHARS, &mut id);
    Some(id)
}

/// Whether a text has the form of a row id.
pub fn is_id(text: &str) -> bool {
    text.len() == ID_CHARS && text.bytes().all(|b| ALPHABET.contains(&b))
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn scalar() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<f64>().prop_map(|n| json!(if n.is_finite() { n } else { 0.0 })),
            any::<i64>().prop_map(|n| json!(n >> 11)),
            (-3..3i64).prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[\u{0}\u{1}a\u{ff}]{0,4}".prop_map(Value::from),
        ]
    }

    fn rank(value: &Value) -> u8 {
        match value {
            Value::Null => 0,
            Value::Bool(_) => 1,
            Value::Number(_) => 2,
            _ => 3,
        }
    }

    fn order(a: &Value, b: &Value) -> Ordering {
        match (a, b) {
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (Value::Number(a), Value::Number(b)) => a
                .as_f64()
                .unwrap()
                .partial_cmp(&b.as_f64().unwrap())
                .unwrap(),
            (Value::String(a), Value::String(b)) => a.cmp(b),
            _ => rank(a).cmp(&rank(b)),
        }
    }

    fn encode(values: &[Value]) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(values.iter().all(|v| push(&mut out, v)));
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn tuples_sort_as_their_encodings(
            a in prop::collection::vec(scalar(), 2),
            b in prop::collection::vec(scalar(), 2),
        ) {
            let expected = order(&a[0], &b[0]).then_with(|| order(&a[1], &b[1]));
            prop_assert_eq!(encode(&a).cmp(&encode(&b)), expected);
        }

        #[test]
        fn what_was_pushed_is_popped(a in scalar(), rest in prop::collection::vec(any::<u8>(), 0..4)) {
            let mut bytes = encode(std::slice::from_ref(&a));
            bytes.extend(&rest);
            let (value, left) = pop(&bytes).unwrap();
            prop_assert_eq!(left, &rest[..]);
            prop_assert_eq!(order(&value, &a), Ordering::Equal);
            prop_assert_eq!(value.is_number(), a.is_number());
        }

        #[test]
        fn bytes_that_are_no_value_are_refused_without_harm(
            bytes in prop::collection::vec(any::<u8>(), 0..12),
        ) {
            if let Some((value, rest)) = pop(&bytes) {
                let mut again = Vec::new();
                prop_assert!(push(&mut again, &value));
                again.extend(rest);
                prop_assert_eq!(again.len(), bytes.len());
            }
        }

        #[test]
        fn a_prefix_covers_what_begins_with_it(
            prefix in prop::collection::vec(any::<u8>(), 0..4),
            key in prop::collection::vec(any::<u8>(), 0..6),
        ) {
            let within = key >= prefix && after_prefix(&prefix).is_none_or(|end| key < end);
            prop_assert_eq!(within, key.starts_with(&prefix));
        }

        #[test]
        fn ids_sort_in_commit_order(
            a in 0u64..1 << 60, b in 0u64..1 << 60, m in 0u32..1 << 20, n in 0u32..1 << 20,
        ) {
            let (x, y) = (mint_id(Revision(a), m).unwrap(), mint_id(Revision(b), n).unwrap());
            prop_assert!(is_id(&x) && is_id(&y));
            prop_assert_eq!(x.cmp(&y), (a, m).cmp(&(b, n)));
        }
    }

    #[test]
    fn what_cannot_be_minted_or_indexed_is_told() {
        assert_eq!(mint_id(Revision(1 << 60), 0), None);
        assert_eq!(mint_id(Revision(1), IDS_PER_REVISION), None);
        assert!(!push(&mut Vec::new(), &json!([])));
        assert!(!is_id("0000000000000w00") && !is_id("") && !is_id("ü00000000000000"));
    }
}
