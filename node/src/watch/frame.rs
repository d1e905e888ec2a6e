//! Frames of the event stream, as bytes. Results are passed on as they are, never copied or
//! parsed again. Pure.

use bytes::Bytes;
use flower_api::{
    Revision,
    watch::{Failed, Moved, Opened, Reload, Same, frame},
    wire::Problem,
};
use serde::Serialize;

use super::hub::Told;

/// Results shorter than this are copied into their frame: pieces have a price too.
const COPIED: usize = 16 << 10;

/// What is written to a client at once.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Frame {
    pieces: Vec<Bytes>,
    text: String,
    /// The revision that its reader is at afterwards, when it says one.
    to: Option<Revision>,
}

impl Frame {
    /// The watch is there.
    pub fn opened(watch: String, revision: Revision) -> Self {
        let mut open = Self::default().event(frame::OPEN, None, &Opened { watch, revision });
        open.to = Some(revision);
        open
    }

    /// The revision that its reader is at afterwards, when it says one.
    pub fn to(&self) -> Option<Revision> {
        self.to
    }

    /// Nothing has changed.
    pub fn same(to: Revision) -> Self {
        Self::default().event(frame::SAME, Some(to), &Same { to })
    }

    /// … behind what is in it already.
    #[must_use]
    pub fn and_same(self, to: Revision) -> Self {
        self.event(frame::SAME, Some(to), &Same { to })
    }

    /// A sign of life before there is anything to tell.
    pub fn comment() -> Self {
        Self {
            text: ":\n\n".to_owned(),
            ..Self::default()
        }
    }

    /// The watch ends here.
    pub fn moved(why: &str, retry_ms: u64) -> Self {
        let moved = Moved {
            why: why.to_owned(),
            retry_ms,
        };
        let start = Self {
            text: format!("retry: {retry_ms}\n"),
            ..Self::default()
        };
        start.event(frame::MOVED, None, &moved)
    }

    /// The watch ends for a reason.
    pub fn ended(problem: &Problem) -> Self {
        let failed = Failed {
            q: None,
            to: None,
            problem: problem.clone(),
        };
        Self::default().event(frame::ERROR, None, &failed)
    }

    /// Another deployment answers.
    #[must_use]
    pub fn reload(self, deployment: &str) -> Self {
        let reload = Reload {
            deployment: deployment.to_owned(),
        };
        self.event(frame::RELOAD, None, &reload)
    }

    /// Changes, errors first; all of them hold at `to`.
    #[must_use]
    pub fn step(mut self, from: Revision, to: Revision, changes: &[Told]) -> Self {
        let mut values = Vec::with_capacity(changes.len());
        for told in changes {
            match &told.outcome.result {
                Ok(json) => values.push((told, json)),
                Err(problem) => {
                    let mut problem = problem.clone();
                    problem.revision = Some(to);
                    let failed = Failed {
                        q: Some(told.id.to_string()),
                        to: Some(to),
                        problem,
                    };
                    self = self.event(frame::ERROR, None, &failed);
                }
            }
        }
        let head = format!(
            "id: {to}\nevent: {}\ndata: {{\"from\":{from},\"to\":{to},\"changes\":[",
            frame::STEP
        );
        self.text.push_str(&head);
        for (i, (told, json)) in values.into_iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let (q, etag) = (quoted(&told.id), quoted(&told.outcome.etag.to_string()));
            let head = format!("{comma}{{\"q\":{q},\"etag\":{etag},\"value\":");
            self.text.push_str(&head);
            self.result(json);
            self.text.push('}');
        }
        self.text.push_str("]}\n\n");
        self.to = Some(to);
        self
    }

    fn result(&mut self, json: &Bytes) {
        match std::str::from_utf8(json) {
            Ok(text) if text.len() < COPIED => self.text.push_str(text),
            _ => {
                let text = std::mem::take(&mut self.text);
                self.pieces.push(text.into());
                self.pieces.push(json.clone());
            }
        }
    }

    fn event(mut self, name: &str, id: Option<Revision>, data: &impl Serialize) -> Self {
        if let Some(id) = id {
            self.text.push_str(&format!("id: {id}\n"));
            self.to = Some(id);
        }
        let data = serde_json::to_string(data).unwrap_or_default();
        self.text
            .push_str(&format!("event: {name}\ndata: {data}\n\n"));
        self
    }

    /// Its bytes, in order.
    pub fn into_pieces(mut self) -> Vec<Bytes> {
        if !self.text.is_empty() {
            self.pieces.push(self.text.into());
        }
        self.pieces
    }
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use flower_api::watch::Step;

    use super::*;
    use crate::query::{Key, Outcome};

    fn told(id: &str, result: Result<String, Problem>) -> Told {
        let key = Key {
            name: "q".into(),
            args: "{}".into(),
        };
        Told {
            id: id.into(),
            outcome: Arc::new(Outcome::new(&key, result, None)),
        }
    }

    fn text(frame: Frame) -> String {
        let pieces = frame.into_pieces();
        String::from_utf8(pieces.concat()).unwrap()
    }

    #[test]
    fn a_step_is_one_line_of_json_with_the_results_as_they_are() {
        let large = format!("\"{}\"", "x".repeat(COPIED));
        let changes = [
            told("a\"b", Ok("{\"x\":1.0}".into())),
            told(
                "gone",
                Err(Problem::new(404, "fault:gone", "Gone", "it is")),
            ),
            told("large", Ok(large.clone())),
            told("z", Ok("null".into())),
        ];
        let frame = Frame::default()
            .reload("hash")
            .step(Revision(3), Revision(7), &changes);
        assert!(frame.clone().into_pieces().len() > 2);
        let text = text(frame);
        let frames: Vec<&str> = text.split_terminator("\n\n").collect();
        assert_eq!(frames[0], "event: reload\ndata: {\"deployment\":\"hash\"}");
        assert!(frames[1].starts_with("event: error\ndata: {\"q\":\"gone\",\"to\":7,"));
        assert_eq!(frames.len(), 3);
        let data = frames[2]
            .strip_prefix("id: 7\nevent: step\ndata: ")
            .unwrap();
        assert!(!data.contains('\n'));
        let step: Step = serde_json::from_str(data).unwrap();
        assert_eq!((step.from, step.to), (Revision(3), Revision(7)));
        let got: Vec<(&str, &str)> = step
            .changes
            .iter()
            .map(|c| (&*c.q, c.value.get()))
            .collect();
        let expected = [("a\"b", "{\"x\":1.0}"), ("large", &large), ("z", "null")];
        assert_eq!(got, expected);
        assert_eq!(step.changes[2].etag, changes[3].outcome.etag.to_string());
    }

    #[test]
    fn the_other_frames() {
        assert_eq!(
            text(Frame::same(Revision(9))),
            "id: 9\nevent: same\ndata: {\"to\":9}\n\n"
        );
        assert_eq!(
            text(Frame::moved("stops", 70)),
            "retry: 70\nevent: moved\ndata: {\"why\":\"stops\",\"retryMs\":70}\n\n"
        );
        assert_eq!(
            text(Frame::opened("w".into(), Revision(4))),
            "event: open\ndata: {\"watch\":\"w\",\"revision\":4}\n\n"
        );
        assert!(text(Frame::comment()).starts_with(':'));
    }
}
