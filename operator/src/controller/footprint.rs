//! Memory and disk for the status: rounded to 5 %, and at most once a minute, so that a busy
//! database does not write to the API server. Pure.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::observed::Observed;
use crate::crd::status::FootprintStatus;

/// Seconds between two writes.
const INTERVAL_SECONDS: i64 = 60;

/// A resident set or a file that differs by less is as it was: allocators and redb's files
/// move by so much while nothing happens.
const NOISE_BYTES: i64 = 4 << 20;

/// The footprint to show: the old one while it is young or about right.
pub fn compute(
    old: Option<&FootprintStatus>,
    observed: &Observed,
    now: Timestamp,
) -> Option<FootprintStatus> {
    let age = |one: &FootprintStatus| now.as_second() - one.at.0.as_second();
    if old.is_some_and(|old| age(old) < INTERVAL_SECONDS) {
        return old.cloned();
    }
    let Some(fresh) = measure(old, observed, now) else {
        return old.cloned();
    };
    match old {
        Some(old)
            if (FootprintStatus {
                at: fresh.at.clone(),
                ..old.clone()
            }) == fresh =>
        {
            Some(old.clone())
        }
        _ => Some(fresh),
    }
}

fn measure(
    old: Option<&FootprintStatus>,
    observed: &Observed,
    now: Timestamp,
) -> Option<FootprintStatus> {
    let all: Vec<_> = observed
        .reports()
        .map(|(_, report)| &report.footprint)
        .collect();
    // The replica that stores most: others may still be catching up.
    let fullest = all.iter().max_by_key(|one| one.stored_bytes)?;
    let resident: Option<u64> = all.iter().map(|one| one.resident_bytes).sum();
    let files = all
        .iter()
        .map(|one| one.state_file_bytes + one.log_file_bytes)
        .sum();
    let percent = |bytes: u64| {
        (fullest.stored_bytes > 0).then(|| {
            let wide = u128::from(bytes) * 100 / u128::from(fullest.stored_bytes);
            i64::try_from(wide).unwrap_or(i64::MAX)
        })
    };
    let keep = |fresh: u64, before: Option<i64>, noise: i64| {
        about(before, i64::try_from(fresh).unwrap_or(i64::MAX), noise)
    };
    let resident_bytes = resident.map(|bytes| {
        let before = old.and_then(|old| old.resident_bytes);
        keep(bytes, before, NOISE_BYTES)
    });
    let stored_bytes = keep(fullest.stored_bytes, old.map(|old| old.stored_bytes), 0);
    // The same noise, in percent of what is stored.
    let noise = NOISE_BYTES.saturating_mul(100) / stored_bytes.max(1);
    let file_percent = percent(fullest.state_file_bytes + fullest.log_file_bytes)
        .map(|now| about(old.and_then(|old| old.file_percent_of_stored), now, noise));
    let resident_percent = fullest.resident_bytes.and_then(percent).map(|now| {
        let before = old.and_then(|old| old.resident_percent_of_stored);
        about(before, now, noise)
    });
    Some(FootprintStatus {
        at: Time(Timestamp::from_second(now.as_second()).unwrap_or(now)),
        summary: summary(resident_bytes, stored_bytes),
        resident_bytes,
        stored_bytes,
        file_bytes: keep(files, old.map(|old| old.file_bytes), NOISE_BYTES),
        file_percent_of_stored: file_percent,
        resident_percent_of_stored: resident_percent,
    })
}

/// The old value while the new one is within 5 % or `noise` of it; else the new one on a scale
/// whose steps are 5 %.
fn about(old: Option<i64>, now: i64, noise: i64) -> i64 {
    if let Some(old) = old
        && (now - old).abs() <= noise.max(old.abs() / 20)
    {
        return old;
    }
    let mut step = 1;
    while now / step >= 40 {
        step *= 2;
    }
    (now + step / 2) / step * step
}

fn summary(resident: Option<i64>, stored: i64) -> String {
    match resident {
        Some(resident) => format!("{} RSS, {} stored", short(resident), short(stored)),
        None => format!("{} stored", short(stored)),
    }
}

fn short(bytes: i64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut tenths = bytes.saturating_mul(10);
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1_024;
        unit += 1;
    }
    if tenths < 100 && unit > 0 {
        format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
    } else {
        format!("{} {}", tenths / 10, UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rounded_to_about_five_percent_and_stay_while_they_are_right() {
        for value in [0, 1, 39, 41, 999, 123_456, 987_654_321] {
            let shown = about(None, value, 0);
            assert!(
                (shown - value).abs() * 20 <= value.max(1),
                "{value} -> {shown}"
            );
        }
        assert_eq!(about(Some(1_000), 1_050, 0), 1_000);
        assert_ne!(about(Some(1_000), 1_100, 0), 1_000);
        assert_eq!(about(Some(1_000), 1_100, 100), 1_000);
        assert_ne!(about(Some(1_000), 1_101, 100), 1_000);
    }

    #[test]
    fn sizes_are_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_536, "1.5 KiB"),
            (100 << 20, "100 MiB"),
            (3 << 30, "3.0 GiB"),
        ] {
            assert_eq!(short(bytes), text);
        }
    }
}
