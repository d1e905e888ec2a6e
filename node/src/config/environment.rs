//! Variables of the environment that look like settings but are none: a typing error must not
//! pass for a default.

use super::SETTINGS;

/// Variables that the other commands read, with what they are; known to `serve` too, so that
/// a shell inside a container may have both.
pub const CLI_VARIABLES: &[(&str, &str)] = &[
    ("FLOWER_URL", "client API that the commands call"),
    ("FLOWER_ADMIN_URL", "admin API that the commands call"),
    ("FLOWER_TOKEN", "token for the client API"),
    ("FLOWER_ADMIN_TOKEN", "token for the admin API"),
];

/// One line for each `FLOWER_` variable that is no setting, with the nearest one that is.
/// The variables that Kubernetes makes for Services are left alone.
pub fn unknown_variables(environment: &[(String, String)]) -> Vec<String> {
    let settings: Vec<String> = SETTINGS.iter().map(super::Setting::variable).collect();
    let known = || {
        let commands = CLI_VARIABLES.iter().map(|(name, _)| *name);
        settings.iter().map(String::as_str).chain(commands)
    };
    let mut lines = Vec::new();
    for (name, value) in environment {
        let ours = name.starts_with("FLOWER_");
        if !ours || known().any(|k| k == name) || is_service_link(name, value) {
            continue;
        }
        let nearest = known()
            .min_by_key(|k| distance(k, name))
            .unwrap_or_default();
        lines.push(format!(
            "{name} is no setting of Flower; did you mean {nearest}?"
        ));
    }
    lines
}

/// What Kubernetes makes for a Service `flower-x`: FLOWER_X_SERVICE_HOST=10.0.0.1,
/// FLOWER_X_SERVICE_PORT[_NAME]=7700, FLOWER_X_PORT=tcp://…, FLOWER_X_PORT_7700_TCP[_…]=….
fn is_service_link(name: &str, value: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if name.ends_with("_SERVICE_HOST") || value.contains("://") && name.ends_with("_PORT") {
        return true;
    }
    if (name.ends_with("_SERVICE_PORT") || name.contains("_SERVICE_PORT_")) && number(value) {
        return true;
    }
    name.split("_PORT_").skip(1).any(|rest| {
        let mut words = rest.split('_');
        words.next().is_some_and(number)
            && words
                .next()
                .is_some_and(|p| matches!(p, "TCP" | "UDP" | "SCTP"))
    })
}

/// Levenshtein's distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}
