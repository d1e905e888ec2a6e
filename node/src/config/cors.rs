//! Which pages may call the client API: a list of origins, as browsers send them.

use std::{collections::BTreeSet, str::FromStr};

/// Origins whose pages may call the client API.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CorsOrigins {
    all: bool,
    some: BTreeSet<String>,
}

impl CorsOrigins {
    /// Whether no page may.
    pub fn is_none(&self) -> bool {
        !self.all && self.some.is_empty()
    }

    /// Whether pages of this origin may.
    pub fn allows(&self, origin: &str) -> bool {
        self.all || self.some.contains(origin)
    }
}

impl FromStr for CorsOrigins {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut origins = Self::default();
        for origin in text.split(',').map(str::trim).filter(|o| !o.is_empty()) {
            if origin == "*" {
                origins.all = true;
            } else if is_origin(origin) {
                origins.some.insert(origin.to_owned());
            } else {
                let shown: String = origin.chars().take(80).collect();
                return Err(format!(
                    "'{shown}' is no origin; write it as browsers send it, such as \
                     https://app.example.com, without a path"
                ));
            }
        }
        Ok(origins)
    }
}

/// A scheme and a host, perhaps a port; in lower case, as browsers send it.
fn is_origin(text: &str) -> bool {
    let Some((scheme, host)) = text.split_once("://") else {
        return false;
    };
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.:[]+_".contains(&b);
    !scheme.is_empty() && !host.is_empty() && text.len() <= 255 && {
        scheme.bytes().all(plain) && host.bytes().all(plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_listed_or_all_and_anything_else_is_refused() {
        let parse = |text: &str| text.parse::<CorsOrigins>();
        assert!(parse("").unwrap().is_none());
        let two = parse("https://a.example, http://localhost:3000").unwrap();
        assert!(two.allows("https://a.example") && two.allows("http://localhost:3000"));
        assert!(!two.allows("https://a.example:443") && !two.allows("null") && !two.is_none());
        assert!(parse("*").unwrap().allows("null"));
        for bad in [
            "a.example",
            "https://",
            "https://a/b",
            "https://A.example",
            "null",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
