//! Whether the lines of an export are whole: read as they come, a line at a time.

use flower_api::export::{Counts, End, FORMAT, Header, Line};
use serde::Deserialize;
use sha2::{Digest, Sha256};

/// A line may have so many bytes: a bundle as JSON, and a manifest beside it.
const LINE_BYTES: usize = 64 << 20;

/// An export that is whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Whole {
    pub header: Header,
    pub end: End,
    pub bytes: u64,
}

/// Takes an export's bytes.
#[derive(Default)]
pub(in crate::cli) struct Check {
    hash: Sha256,
    /// A line that is not all there yet.
    line: Vec<u8>,
    header: Option<Header>,
    counts: Counts,
    lines: u64,
    end: Option<End>,
    bytes: u64,
}

/// What is read of a header of whatever format.
#[derive(Deserialize)]
struct AnyHeader {
    header: AnyFormat,
}

#[derive(Deserialize)]
struct AnyFormat {
    format: u64,
}

/// The kind of a line: the one field of its object.
pub(in crate::cli) fn kind(line: &[u8]) -> &str {
    let body = line.strip_prefix(b"{\"").unwrap_or_default();
    let end = body.iter().position(|b| *b == b'"').unwrap_or(0);
    std::str::from_utf8(&body[..end]).unwrap_or_default()
}

impl Check {
    /// Takes the next bytes.
    ///
    /// # Errors
    /// What is wrong with the export.
    pub fn take(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        self.bytes += bytes.len() as u64;
        while let Some(at) = bytes.iter().position(|b| *b == b'\n') {
            let mut line = std::mem::take(&mut self.line);
            line.extend_from_slice(&bytes[..at]);
            bytes = &bytes[at + 1..];
            self.lines += 1;
            self.whole_line(&line)?;
        }
        self.line.extend_from_slice(bytes);
        match self.line.len() > LINE_BYTES {
            true => Err(format!("line {} is too long for an export", self.lines + 1)),
            false => Ok(()),
        }
    }

    /// Bytes taken so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Rows taken so far.
    pub fn rows(&self) -> u64 {
        self.counts.rows
    }

    fn whole_line(&mut self, line: &[u8]) -> Result<(), String> {
        let at = self.lines;
        if self.end.is_some() {
            return Err(format!("line {at} comes after the end"));
        }
        if self.header.is_none() {
            self.header = Some(header(line)?);
        } else {
            let counts = &mut self.counts;
            match kind(line) {
                "bundle" if at == 2 => {}
                "row" => counts.rows += 1,
                "receipt" => counts.receipts += 1,
                "root" => counts.roots += 1,
                "cell" => counts.cells += 1,
                "end" => return self.ends(line),
                other => return Err(format!("line {at} is of no known kind ('{other:.20}')")),
            }
        }
        self.hash.update(line);
        self.hash.update(b"\n");
        Ok(())
    }

    fn ends(&mut self, line: &[u8]) -> Result<(), String> {
        let Ok(Line::End(end)) = serde_json::from_slice(line) else {
            return Err("its last line is damaged".into());
        };
        let sha256 = hex::encode(self.hash.finalize_reset());
        if end.counts != self.counts || end.sha256 != sha256 {
            return Err(format!(
                "its lines are not those that it ends with: it is damaged (checksum {sha256}, \
                 not {})",
                end.sha256
            ));
        }
        self.end = Some(end);
        Ok(())
    }

    /// The end of the bytes.
    ///
    /// # Errors
    /// When the export is cut short.
    pub fn finish(self) -> Result<Whole, String> {
        let cut = format!(
            "it is cut short: after {} lines its end is missing",
            self.lines
        );
        if !self.line.is_empty() {
            return Err(cut);
        }
        let (header, end) = self.header.zip(self.end).ok_or(cut)?;
        Ok(Whole {
            header,
            end,
            bytes: self.bytes,
        })
    }
}

fn header(line: &[u8]) -> Result<Header, String> {
    let none = "its first line is not the header of an export";
    let AnyHeader { header } = serde_json::from_slice(line).map_err(|_| none)?;
    if header.format != u64::from(FORMAT) {
        return Err(format!(
            "it has format {}, and this version of the program reads format {FORMAT}: use the \
             version that wrote it",
            header.format
        ));
    }
    match serde_json::from_slice(line) {
        Ok(Line::Header(header)) => Ok(header),
        _ => Err(none.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str =
        r#"{"header":{"format":1,"program":"x","cluster":null,"group":0,"revision":3}}"#;

    fn text(body: &str) -> String {
        let lines = format!("{HEADER}\n{body}");
        let sha256 = hex::encode(Sha256::digest(&lines));
        let (rows, roots) = (
            lines.matches("{\"row\"").count(),
            lines.matches("{\"root\"").count(),
        );
        format!(
            "{lines}{{\"end\":{{\"rows\":{rows},\"receipts\":0,\"roots\":{roots},\"sha256\":\"{sha256}\"}}}}\n"
        )
    }

    fn check(text: &str, piece: usize) -> Result<Whole, String> {
        let mut check = Check::default();
        for piece in text.as_bytes().chunks(piece) {
            check.take(piece)?;
        }
        check.finish()
    }

    #[test]
    fn a_whole_export_is_told_from_a_damaged_one_however_it_comes() {
        let good = text("{\"bundle\":{}}\n{\"row\":1}\n{\"root\":2}\n");
        for piece in [1, 7, good.len()] {
            let whole = check(&good, piece).unwrap();
            assert_eq!((whole.end.counts.rows, whole.bytes), (1, good.len() as u64));
        }
        for cut in 0..good.len() {
            assert!(check(&good[..cut], 16).is_err(), "cut at {cut}");
        }
        let damaged = good.replace("\"row\":1", "\"row\":3");
        assert!(check(&damaged, 9).unwrap_err().contains("damaged"));
        let other = good.replace("\"format\":1", "\"format\":2");
        assert!(check(&other, 9).unwrap_err().contains("format 2"));
        for (bad, why) in [
            (format!("{good}{{\"row\":1}}\n"), "after the end"),
            (text("{\"rows\":1}\n"), "no known kind"),
            ("nothing\n".into(), "header"),
            (String::new(), "cut short"),
        ] {
            let said = check(&bad, 64).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }
}
