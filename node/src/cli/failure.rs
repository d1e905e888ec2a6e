//! How a command fails: words for people, a code for scripts.

use std::process::ExitCode;

use flower_api::{
    admin::AdminError,
    wire::{Outcome, Problem},
};
use serde_json::{Value, json};

use super::{Output, print};
use crate::client::NoAnswer;

/// Exit codes; the help of `flower` lists them.
pub mod exit {
    /// Failed on this side.
    pub const FAILED: u8 = 1;
    /// The node refused, or the function ended with a fault.
    pub const REFUSED: u8 = 3;
    /// The node cannot be reached; nothing happened.
    pub const UNREACHABLE: u8 = 4;
    /// Nobody knows whether it happened.
    pub const UNKNOWN: u8 = 5;
    /// A node ended by an error that it cannot go on after.
    pub const FATAL: u8 = 70;
}

/// A command that did not do what it was to do.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
    problem: Option<Box<Problem>>,
}

impl Failure {
    /// Failed on this side.
    pub fn here(message: impl Into<String>) -> Self {
        Self {
            code: exit::FAILED,
            message: message.into(),
            problem: None,
        }
    }

    /// It would be refused.
    pub(super) fn refused(message: impl Into<String>) -> Self {
        Self {
            code: exit::REFUSED,
            ..Self::here(message)
        }
    }

    /// It would be refused, and what was printed says why.
    pub(super) fn told() -> Self {
        Self::refused("")
    }

    /// Nobody knows whether the mutation under `key` happened.
    pub(super) fn unknown(key: &str, why: &str) -> Self {
        let message = format!(
            "nobody knows whether it happened: {why}\nRun the same command with --key {key} to \
             learn its outcome; it will not happen twice."
        );
        Self {
            code: exit::UNKNOWN,
            message,
            problem: None,
        }
    }

    /// The exit code.
    #[cfg(test)]
    pub(super) fn code(&self) -> u8 {
        self.code
    }

    /// Whether it is a refusal with this code.
    pub(super) fn is(&self, code: &str) -> bool {
        self.problem.as_ref().is_some_and(|p| p.code == code)
    }

    /// Prints it and gives the exit code.
    pub(super) fn report(self, output: Output) -> ExitCode {
        match output {
            _ if self.message.is_empty() => {}
            Output::Text => print::complain(&self.message),
            Output::Json => print::line(format_args!("{:#}", self.json())),
        }
        ExitCode::from(self.code)
    }

    fn json(&self) -> Value {
        json!({ "error": { "exitCode": self.code, "message": self.message, "problem": self.problem } })
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let code = match problem.outcome {
            Outcome::NotApplied => exit::REFUSED,
            Outcome::Unknown => exit::UNKNOWN,
        };
        let mut message = problem.to_string();
        for error in &problem.errors {
            let at = if error.pointer.is_empty() {
                "the arguments"
            } else {
                &error.pointer
            };
            message += &format!("\n  {at}: {}", error.detail);
        }
        if let Some(data) = &problem.data {
            message += &format!("\n  {data}");
        }
        if !problem.request_id.is_empty() {
            message += &format!("\n  request id {}", problem.request_id);
        }
        Self {
            code,
            message,
            problem: Some(Box::new(problem)),
        }
    }
}

impl From<NoAnswer> for Failure {
    fn from(no_answer: NoAnswer) -> Self {
        let message = no_answer.to_string();
        Self {
            code: exit::UNREACHABLE,
            message,
            problem: None,
        }
    }
}

impl From<AdminError> for Failure {
    fn from(error: AdminError) -> Self {
        let message = error.to_string();
        match error {
            AdminError::Refused(problem) => (*problem).into(),
            AdminError::Unreachable { .. } => Self {
                code: exit::UNREACHABLE,
                message,
                problem: None,
            },
            AdminError::Garbled { .. } => Self {
                code: exit::REFUSED,
                message,
                problem: None,
            },
        }
    }
}
