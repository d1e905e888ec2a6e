//! The command line itself, and that its reference says what it does.

use super::*;

#[test]
fn the_command_line_is_well_formed() {
    command().debug_assert();
}

#[test]
fn failures_have_the_codes_that_the_help_lists() {
    use flower_api::wire::Problem;
    let refused = Failure::from(Problem::new(400, "invalid-args", "t", "d"));
    let unknown = Failure::from(Problem::new(504, "timeout", "t", "d").unknown());
    let not_sent = crate::client::NoAnswer::NotSent {
        url: "u".into(),
        why: "w".into(),
    };
    let codes = [
        (Failure::here("x").code(), exit::FAILED),
        (refused.code(), exit::REFUSED),
        (Failure::from(not_sent).code(), exit::UNREACHABLE),
        (unknown.code(), exit::UNKNOWN),
        (exit::FATAL, exit::FATAL),
    ];
    for (code, expected) in codes {
        assert_eq!(code, expected);
        assert!(EXIT_CODES.contains(&format!("\n  {code} ")), "{code}");
    }
}
