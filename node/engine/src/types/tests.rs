use serde_json::json;

use super::*;

fn ty(json: Value) -> FieldType {
    serde_json::from_value(json).unwrap()
}

fn found(ty: &FieldType, value: Value) -> Vec<String> {
    let mut errors = Errors::default();
    check(ty, &value, "", &mut errors);
    errors.0.iter().map(|e| e.pointer.clone()).collect()
}

fn text(ty: &FieldType, value: Value) -> String {
    let mut errors = Errors::default();
    check(ty, &value, "", &mut errors);
    errors.text()
}

#[test]
fn each_type_takes_its_values_and_refuses_others() {
    let id = "0000000000010000";
    let table = [
        (
            json!({"type": "bool"}),
            vec![json!(true)],
            vec![json!(1), json!(null)],
        ),
        (
            json!({"type": "number"}),
            vec![json!(1.5), json!(-3)],
            vec![json!("1"), json!(null)],
        ),
        (
            json!({"type": "int", "min": 1, "max": 9}),
            vec![json!(1), json!(9), json!(3.0)],
            vec![json!(0), json!(10), json!(1.5), json!(1e300), json!("5")],
        ),
        (
            json!({"type": "time"}),
            vec![json!(1_700_000_000_000u64)],
            vec![json!(0.5), json!(1e17)],
        ),
        (
            json!({"type": "text", "max": 2}),
            vec![json!("ab"), json!("\u{1F600}"), json!("äö")],
            vec![json!("abc"), json!("a\u{1F600}"), json!(7)],
        ),
        (
            json!({"type": "id", "table": "x"}),
            vec![json!(id)],
            vec![json!("1"), json!(1)],
        ),
        (
            json!({"type": "oneOf", "values": ["a"]}),
            vec![json!("a")],
            vec![json!("b"), json!({})],
        ),
        (
            json!({"type": "json"}),
            vec![json!(null), json!([{"a": 1}])],
            vec![],
        ),
        (
            json!({"type": "list", "item": {"type": "bool"}, "max": 1}),
            vec![json!([]), json!([true])],
            vec![json!([1]), json!([true, true]), json!({})],
        ),
        (
            json!({"type": "optional", "inner": {"type": "bool"}}),
            vec![json!(false), json!(null)],
            vec![json!(0)],
        ),
    ];
    for (spec, good, bad) in table {
        let ty = ty(spec);
        for value in good {
            assert_eq!(
                found(&ty, value.clone()),
                Vec::<String>::new(),
                "{ty:?} {value}"
            );
        }
        for value in bad {
            assert!(!found(&ty, value.clone()).is_empty(), "{ty:?} {value}");
        }
    }
}

#[test]
fn records_name_what_is_missing_unknown_and_wrong() {
    let ty = ty(json!({"type": "record", "fields": [
        ["a/b", {"type": "bool"}],
        ["list", {"type": "list", "item": {"type": "record", "fields": [["n", {"type": "int"}]]}}],
        ["maybe", {"type": "optional", "inner": {"type": "text"}}],
    ]}));
    assert!(found(&ty, json!({"a/b": true, "list": []})).is_empty());
    let wrong = json!({"list": [{"n": 1}, {"n": "x"}], "other~": 1});
    assert_eq!(found(&ty, wrong), ["/a~1b", "/list/1/n", "/other~0"]);
    assert!(text(&ty, json!([])).contains("must be an object, not a list"));
    assert!(text(&ty, json!({"a/b": true, "list": [], "x": 1})).contains("known are a/b"));
}

#[test]
fn the_number_of_errors_is_bounded() {
    let ty = ty(json!({"type": "list", "item": {"type": "bool"}}));
    let many: Vec<Value> = (0..1_000).map(Value::from).collect();
    assert_eq!(found(&ty, Value::Array(many)).len(), MOST_ERRORS);
}
