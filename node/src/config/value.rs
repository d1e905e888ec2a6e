//! Reads single values by their name in the table and collects what is wrong with them.

use std::{
    net::{IpAddr, Ipv4Addr},
    ops::RangeInclusive,
};

use super::{BadSettings, Given, LogFormat, SETTINGS, Setting, Source};

/// Reads values; what is wrong is collected, so that a person sees all of it at once.
pub(super) struct Reader<'a> {
    given: &'a Given,
    wrong: Vec<String>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(given: &'a Given) -> Self {
        Self {
            given,
            wrong: Vec::new(),
        }
    }

    pub(super) fn wrong(&mut self, what: String) {
        self.wrong.push(what);
    }

    pub(super) fn finish<T>(self, value: T) -> Result<T, BadSettings> {
        if self.wrong.is_empty() {
            Ok(value)
        } else {
            Err(BadSettings(self.wrong))
        }
    }

    /// The value given, else the default; `None` when there is neither.
    pub(super) fn text(&self, flag: &str) -> Option<String> {
        let given = self.given.0.get(flag).map(|(value, _)| value.clone());
        given.or_else(|| Some(entry(flag).default.to_owned()).filter(|d| !d.is_empty()))
    }

    pub(super) fn number(&mut self, flag: &'static str, allowed: RangeInclusive<u64>) -> u64 {
        let text = self.text(flag).unwrap_or_default();
        let (low, high) = (*allowed.start(), *allowed.end());
        match text.parse::<u64>() {
            Ok(number) if allowed.contains(&number) => number,
            _ => {
                self.refuse(flag, &text, &format!("a whole number from {low} to {high}"));
                low
            }
        }
    }

    pub(super) fn bytes(&mut self, flag: &'static str, allowed: RangeInclusive<u64>) -> u64 {
        let low = *allowed.start();
        self.bytes_if_given(flag, allowed).unwrap_or(low)
    }

    pub(super) fn bytes_if_given(
        &mut self,
        flag: &'static str,
        allowed: RangeInclusive<u64>,
    ) -> Option<u64> {
        let text = self.text(flag)?;
        match parse_bytes(&text) {
            Some(bytes) if allowed.contains(&bytes) => Some(bytes),
            _ => {
                let (low, high) = (*allowed.start(), *allowed.end());
                let expected = format!(
                    "a number of bytes (Ki, Mi and Gi may follow it) from {} to {}",
                    show_bytes(low),
                    show_bytes(high)
                );
                self.refuse(flag, &text, &expected);
                None
            }
        }
    }

    pub(super) fn one_of(&mut self, flag: &'static str, allowed: &[&'static str]) -> &'static str {
        let text = self.text(flag).unwrap_or_default();
        let found = allowed.iter().find(|value| **value == text);
        if found.is_none() {
            self.refuse(flag, &text, &format!("one of {}", allowed.join(", ")));
        }
        found.unwrap_or(&allowed[0])
    }

    pub(super) fn log_format(&mut self) -> LogFormat {
        match self.one_of("log-format", &["json", "text"]) {
            "text" => LogFormat::Text,
            _ => LogFormat::Json,
        }
    }

    pub(super) fn ip(&mut self, flag: &'static str) -> IpAddr {
        let text = self.text(flag).unwrap_or_default();
        text.parse().unwrap_or_else(|_| {
            self.refuse(
                flag,
                &text,
                "an IP address such as 0.0.0.0, :: or 127.0.0.1",
            );
            Ipv4Addr::LOCALHOST.into()
        })
    }

    pub(super) fn address(&mut self, flag: &'static str) -> Option<String> {
        let text = self.text(flag)?;
        let valid = text.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty()
                && !host.contains(['/', ' ', '@'])
                && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        if !valid {
            self.refuse(flag, &text, "HOST:PORT, such as db-g0-0.db-g0-peers:7701");
        }
        Some(text)
    }

    fn refuse(&mut self, flag: &'static str, value: &str, expected: &str) {
        let name = match self.given.0.get(flag) {
            Some((_, Source::Flag)) => format!("--{flag}"),
            _ => entry(flag).variable(),
        };
        let value: String = value.chars().take(80).collect();
        self.wrong
            .push(format!("{name} is '{value}', which is not {expected}"));
    }
}

/// The row of the table; a name that is not there is a bug of the caller, found by any test.
fn entry(flag: &str) -> &'static Setting {
    let found = SETTINGS.iter().find(|setting| setting.flag == flag);
    found.expect("a name of the table")
}

/// Bytes: a whole number, alone or with Ki, Mi or Gi behind it.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30)];
    let found = units
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (digits, shift) = found.unwrap_or((text, 0));
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn show_bytes(bytes: u64) -> String {
    for (unit, shift) in [("Gi", 30), ("Mi", 20), ("Ki", 10)] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}
