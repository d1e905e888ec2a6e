//! Log lines: JSON in a cluster, text for people. Spans carry `request_id`, `member` and
//! `revision`; whoever opens a span names them that way.

use std::io::IsTerminal;

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::config::LogFormat;

/// What these write at their lower levels is about requests, and not ours to keep tokens out of:
/// no filter gets at it.
const TELL_HEADERS: [&str; 3] = ["h2", "hyper", "hyper_util"];

/// A filter that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "FLOWER_LOG is '{filter}', which is no filter of log lines: {why}; use a level (error, warn, info, debug, trace) or target=level, several with commas"
)]
pub struct BadFilter {
    filter: String,
    why: String,
}

/// Writes log lines to standard error from now on. A second call changes nothing.
///
/// # Errors
/// `BadFilter`.
pub fn start(format: LogFormat, filter: &str) -> Result<(), BadFilter> {
    let filter = EnvFilter::builder().parse(filter).map_err(|e| BadFilter {
        filter: filter.to_owned(),
        why: e.to_string(),
    })?;
    let filter = TELL_HEADERS
        .iter()
        .filter_map(|target| format!("{target}=info").parse().ok())
        .fold(filter, EnvFilter::add_directive);
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let registry = tracing_subscriber::registry().with(filter);
    // A subscriber that is there already (a test's) stays.
    let _kept = match format {
        LogFormat::Json => {
            let json = lines
                .json()
                .flatten_event(true)
                .with_current_span(true)
                .with_span_list(false);
            registry.with(json).try_init()
        }
        LogFormat::Text => registry.with(lines.with_target(false)).try_init(),
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_filter_is_refused_with_what_may_be_used() {
        let error = start(LogFormat::Text, "a=b=c=d").unwrap_err().to_string();
        assert!(error.starts_with("FLOWER_LOG is 'a=b=c=d'"), "{error}");
        assert!(error.contains("info"));
    }
}
