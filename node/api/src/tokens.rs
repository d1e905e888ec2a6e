//! What a token is, and how a list of them is written. The node and the operator judge alike, so
//! that a Secret that one of them would refuse is refused before a node restarts with it.

/// Shortest token: long enough not to be guessed.
const CHARS_MIN: usize = 16;
/// Longest token.
const CHARS_MAX: usize = 1_024;
/// Tokens of one list that are used; several are for rotation.
const MOST: usize = 16;

/// The tokens of a list: one a line, blank lines apart.
///
/// # Errors
/// What is wrong, without the token; to be put behind the name of the file or key.
pub fn parse(text: &str) -> Result<Vec<String>, String> {
    let lines = text
        .lines()
        .map(str::trim)
        .enumerate()
        .filter(|(_, line)| !line.is_empty());
    let mut tokens = Vec::new();
    for (number, line) in lines {
        let printable = line.bytes().all(|b| b.is_ascii_graphic());
        if !printable || !(CHARS_MIN..=CHARS_MAX).contains(&line.len()) {
            return Err(format!(
                "has a line {} that is no token: a token is {CHARS_MIN} to {CHARS_MAX} \
                 printable ASCII characters without spaces",
                number + 1
            ));
        }
        tokens.push(line.to_owned());
    }
    match tokens.len() {
        0 => Err("holds no token; put one token a line into it".to_owned()),
        n if n > MOST => Err(format!("holds {n} tokens; at most {MOST} are used")),
        _ => Ok(tokens),
    }
}
