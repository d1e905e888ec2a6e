//! Arguments in one form: fields of objects in order, no white space, texts written alike;
//! numbers stay as they were written. Two texts of one form get one result. Pure.

use std::collections::BTreeMap;

/// Arguments nested deeper are refused, as the engine would.
const DEPTH: usize = 127;

/// `text`, which is JSON, in that form.
///
/// # Errors
/// What is wrong, for people.
pub fn canonical(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    value(&mut rest, &mut out, 0)?;
    match rest.trim_start_matches(WHITE).is_empty() {
        true => Ok(out),
        false => Err("there is more behind the value".into()),
    }
}

const WHITE: [char; 4] = [' ', '\t', '\n', '\r'];

fn value(rest: &mut &str, out: &mut String, depth: usize) -> Result<(), String> {
    if depth > DEPTH {
        return Err(format!("values are nested deeper than {DEPTH} levels"));
    }
    skip(rest);
    match rest.bytes().next() {
        Some(b'{') => object(rest, out, depth),
        Some(b'[') => list(rest, out, depth),
        Some(b'"') => {
            let text = string(rest)?;
            push_string(&text, out);
            Ok(())
        }
        Some(_) => scalar(rest, out),
        None => Err("a value is missing".into()),
    }
}

fn skip(rest: &mut &str) {
    *rest = rest.trim_start_matches(WHITE);
}

/// Takes `sign` when it comes next.
fn take(rest: &mut &str, sign: char) -> bool {
    skip(rest);
    let after = rest.strip_prefix(sign);
    *rest = after.unwrap_or(rest);
    after.is_some()
}

fn object(rest: &mut &str, out: &mut String, depth: usize) -> Result<(), String> {
    take(rest, '{');
    let mut fields = BTreeMap::new();
    if !take(rest, '}') {
        loop {
            skip(rest);
            let name = string(rest)?;
            if !take(rest, ':') {
                return Err("a field has no value".into());
            }
            let mut text = String::new();
            value(rest, &mut text, depth + 1)?;
            // As in JavaScript, the last of equal names holds.
            fields.insert(name, text);
            if take(rest, ',') {
                continue;
            }
            if take(rest, '}') {
                break;
            }
            return Err("an object has no end".into());
        }
    }
    out.push('{');
    for (i, (name, text)) in fields.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        push_string(name, out);
        out.push(':');
        out.push_str(text);
    }
    out.push('}');
    Ok(())
}

fn list(rest: &mut &str, out: &mut String, depth: usize) -> Result<(), String> {
    take(rest, '[');
    out.push('[');
    if !take(rest, ']') {
        loop {
            value(rest, out, depth + 1)?;
            if take(rest, ',') {
                out.push(',');
            } else if take(rest, ']') {
                break;
            } else {
                return Err("a list has no end".into());
            }
        }
    }
    out.push(']');
    Ok(())
}

fn string(rest: &mut &str) -> Result<String, String> {
    let mut escaped = false;
    let end = rest.bytes().enumerate().skip(1).find(|(_, byte)| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    });
    let whole = end.and_then(|(at, _)| rest.get(..=at));
    let whole = whole.ok_or("a text has no end")?;
    *rest = &rest[whole.len()..];
    serde_json::from_str(whole).map_err(|e| format!("a text is wrong: {e}"))
}

fn push_string(text: &str, out: &mut String) {
    match serde_json::to_string(text) {
        Ok(quoted) => out.push_str(&quoted),
        // A text always has a JSON form.
        Err(_) => out.push_str("\"\""),
    }
}

/// A number, true, false or null: as it is.
fn scalar(rest: &mut &str, out: &mut String) -> Result<(), String> {
    let ends = |c: char| WHITE.contains(&c) || ",:[]{}\"".contains(c);
    let end = rest.find(ends).unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    serde_json::from_str::<serde::de::IgnoredAny>(word)
        .map_err(|_| "a value is not JSON".to_owned())?;
    out.push_str(word);
    *rest = after;
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn one_form_for_what_is_the_same() {
        for (text, expected) in [
            ("{}", "{}"),
            (
                " { \"b\" : [ 1 , 2.50 ] , \"a\" : null } ",
                r#"{"a":null,"b":[1,2.50]}"#,
            ),
            (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
            (r#""\u0061\/""#, r#""a/""#),
            ("12345678901234567890123", "12345678901234567890123"),
            (r#"["\"",{"x":"\\"}]"#, r#"["\"",{"x":"\\"}]"#),
        ] {
            assert_eq!(canonical(text).unwrap(), expected);
        }
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        for bad in [
            "",
            "{",
            "[1",
            "{\"a\"}",
            "1 2",
            "nope",
            "\"\\ud800\"",
            "[1,]",
            &deep,
        ] {
            assert!(canonical(bad).is_err(), "{bad}");
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((".{0,3}", inner), 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_value_stays_and_the_form_is_one(value in json()) {
            let form = canonical(&value.to_string()).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Value>(&form).unwrap(), &value);
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            prop_assert_eq!(&canonical(&pretty).unwrap(), &form);
            prop_assert_eq!(&canonical(&form).unwrap(), &form);
        }

        #[test]
        fn any_text_ends_in_an_answer(text in "[\\[\\]{}:,\"\\\\a1 ]{0,40}") {
            let known = serde_json::from_str::<Value>(&text).is_ok();
            prop_assert_eq!(canonical(&text).is_ok(), known, "{}", text);
        }
    }
}
