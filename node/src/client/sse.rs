//! Reads an event stream: bytes in, frames out. Lines that are no fields of ours are passed
//! over, as the format asks. Pure.

/// One frame.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// Its kind.
    pub name: String,
    /// Its id, if it has one.
    pub id: Option<String>,
    /// What it carries.
    pub data: String,
}

/// Reads a stream that comes in pieces.
#[derive(Debug, Default)]
pub struct Reader {
    line: Vec<u8>,
    event: Event,
    carriage: bool,
}

impl Reader {
    /// Takes the next bytes; gives the frames that they complete.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<Event> {
        let mut events = Vec::new();
        for byte in bytes {
            match byte {
                b'\n' if std::mem::take(&mut self.carriage) => {}
                b'\n' | b'\r' => {
                    self.carriage = *byte == b'\r';
                    let line = std::mem::take(&mut self.line);
                    events.extend(self.field(&String::from_utf8_lossy(&line)));
                }
                _ => {
                    self.carriage = false;
                    self.line.push(*byte);
                }
            }
        }
        events
    }

    fn field(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return (!event.name.is_empty() || !event.data.is_empty()).then_some(event);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.name),
            "id" => self.event.id = Some(value.to_owned()),
            "data" => {
                if !self.event.data.is_empty() {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_whole_however_the_bytes_come() {
        let text = ":\n\nretry: 5\nevent: step\nid: 7\ndata: {\"ä\":\ndata:1}\r\n\r\nevent: same\ndata: x\n\nevent: cut";
        let expected = [
            Event {
                name: "step".into(),
                id: Some("7".into()),
                data: "{\"ä\":\n1}".into(),
            },
            Event {
                name: "same".into(),
                id: None,
                data: "x".into(),
            },
        ];
        for size in 1..text.len() {
            let mut reader = Reader::default();
            let pieces = text.as_bytes().chunks(size);
            let events: Vec<Event> = pieces.flat_map(|piece| reader.take(piece)).collect();
            assert_eq!(events, expected, "pieces of {size}");
        }
    }
}
