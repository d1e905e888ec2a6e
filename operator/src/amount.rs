//! Kubernetes quantities and durations as people write them (`512Mi`, `0.5`, `24h`), parsed
//! to numbers. Pure; the texts themselves are passed on unchanged.

use std::{borrow::Cow, fmt};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

/// A quantity, given as a number or as text (`512Mi`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Amount(pub String);

impl Amount {
    /// The amount in thousandths; `None` when the text is no quantity.
    pub fn milli(&self) -> Option<u128> {
        milli(&self.0)
    }
    /// Whole bytes, rounded up; `None` when the text is no quantity or above 64 bits.
    pub fn bytes(&self) -> Option<u64> {
        u64::try_from(self.milli()?.div_ceil(1_000)).ok()
    }
    /// The same as the API type.
    pub fn quantity(&self) -> Quantity {
        Quantity(self.0.clone())
    }
}

impl From<&str> for Amount {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Int(u64),
            Float(f64),
            Text(String),
        }
        Ok(Self(match Raw::deserialize(d)? {
            Raw::Int(number) => number.to_string(),
            Raw::Float(number) => number.to_string(),
            Raw::Text(text) => text,
        }))
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "pattern": "^[0-9]+(\\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$",
            "maxLength": 32,
        })
    }
}

/// Parses a quantity to thousandths, exactly where a quantity can be (digits below a
/// thousandth are rounded up, as the API server does).
pub fn milli(text: &str) -> Option<u128> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    // The factor in thousandths.
    let factor: u128 = match suffix {
        "m" => 1,
        "" => 1_000,
        "k" => 1_000_000,
        "M" => 1_000_000_000,
        "G" => 1_000_000_000_000,
        "T" => 1_000_000_000_000_000,
        "P" => 1_000_000_000_000_000_000,
        "E" => 1_000_000_000_000_000_000_000,
        "Ki" => 1_000 << 10,
        "Mi" => 1_000 << 20,
        "Gi" => 1_000 << 30,
        "Ti" => 1_000 << 40,
        "Pi" => 1_000 << 50,
        "Ei" => 1_000 << 60,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.len() > 12 || whole.len() > 20 {
        return None;
    }
    let whole: u128 = whole.parse().ok()?;
    let part: u128 = if fraction.is_empty() {
        0
    } else {
        let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
        fraction
            .parse::<u128>()
            .ok()?
            .checked_mul(factor)?
            .div_ceil(scale)
    };
    whole.checked_mul(factor)?.checked_add(part)
}

/// Whether two quantities mean the same number, however written.
pub fn same(a: &str, b: &str) -> bool {
    a == b || matches!((milli(a), milli(b)), (Some(x), Some(y)) if x == y)
}

/// Parses a duration of Go's form with hours, minutes and seconds (`24h`, `1h30m`) to
/// milliseconds.
pub fn duration_ms(text: &str) -> Option<u64> {
    let mut total: u64 = 0;
    let mut rest = text;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..end].parse().ok()?;
        let unit = rest[end..].chars().next()?;
        let ms = match unit {
            'h' => 3_600_000,
            'm' => 60_000,
            's' => 1_000,
            _ => return None,
        };
        total = total.checked_add(number.checked_mul(ms)?)?;
        rest = &rest[end + 1..];
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_parse_exactly_and_nonsense_does_not() {
        for (text, expected) in [
            ("1", Some(1_000)),
            ("500m", Some(500)),
            ("0.5", Some(500)),
            ("1Gi", Some(1_073_741_824_000)),
            ("1024Mi", Some(1_073_741_824_000)),
            ("1.5Gi", Some(1_610_612_736_000)),
            ("1G", Some(1_000_000_000_000)),
            ("", None),
            ("Gi", None),
            ("1Gb", None),
            ("-1", None),
            ("1e3", None),
            ("999999999999999999999Ei", None),
        ] {
            assert_eq!(milli(text), expected, "{text}");
        }
        assert!(same("1Gi", "1024Mi") && !same("1Gi", "1G") && same("?", "?"));
    }

    #[test]
    fn durations_parse_and_nonsense_does_not() {
        for (text, expected) in [
            ("24h", Some(86_400_000)),
            ("1h30m", Some(5_400_000)),
            ("90s", Some(90_000)),
            ("", None),
            ("24", None),
            ("1d", None),
            ("h", None),
            ("99999999999999h", None),
        ] {
            assert_eq!(duration_ms(text), expected, "{text}");
        }
    }
}
