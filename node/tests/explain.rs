//! `flower explain`: what is said of cells and queries of the example of the guides.

mod common;
mod support;

use common::run;
use serde_json::{Value, json};
use support::{TestNode, quick};

const ORDERS: &str = include_str!("../../docs/examples/orders.js");

struct Shop {
    node: TestNode,
    customer: String,
    order: String,
    revision: u64,
}

async fn shop() -> Shop {
    let node = TestNode::serving(ORDERS, quick()).await;
    let http = &node.http;
    let customer = http
        .mutate("addCustomer", "a", json!({ "name": "Ada" }))
        .await
        .ok();
    let items = [1, 2].map(|n| json!({ "sku": "s", "qty": n, "cents": 100 }));
    let args = json!({ "customer": customer, "items": items });
    let placed = http.mutate("placeOrder", "b", args).await;
    let text = |value: Value| value.as_str().unwrap().to_owned();
    Shop {
        customer: text(customer),
        order: text(placed.ok()),
        revision: placed.header("flower-revision").parse().unwrap(),
        node,
    }
}

impl Shop {
    /// The exit code, and what `flower explain` said.
    fn explain(&self, output: &str, args: &[&str]) -> (i32, String) {
        let admin = format!("http://{}", self.node.http.admin);
        let all = [
            &["--output", output, "explain"],
            args,
            &["--admin-url", &admin],
        ]
        .concat();
        let (code, out, wrong) = run(&all);
        (code, out + &wrong)
    }

    fn json(&self, args: &[&str]) -> Value {
        let (code, said) = self.explain("json", args);
        assert_eq!(code, 0, "{said}");
        serde_json::from_str(&said).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cell_is_explained_by_what_it_read_and_who_reads_it() {
    let shop = shop().await;
    let order = shop.order.as_str();
    let total = shop.json(&["cell", "total", order]);
    let subtotal = json!({ "derived": "subtotal", "key": { "order": order } });
    assert_eq!(total["key"], json!({ "order": order }), "{total}");
    let content = &total["content"];
    assert_eq!(
        (&content["value"], &content["height"], &content["root"]),
        (&json!(300), &json!(2), &json!(true)),
        "{total}"
    );
    assert_eq!(content["changed"], shop.revision);
    assert_eq!(content["reads"], json!([{ "cell": subtotal }]));
    assert_eq!(content["readers"], json!([]));

    let key = json!({ "order": order }).to_string();
    let below = shop.json(&["cell", "subtotal", &key]);
    let reads = below["content"]["reads"].as_array().unwrap();
    let entries =
        json!({ "entries": { "table": "lines", "index": "byOrder", "equal": { "order": order } } });
    assert!(reads.contains(&entries), "{below}");
    assert_eq!(reads.len(), 3, "the entries and two lines: {below}");
    let reader = json!([{ "derived": "total", "key": { "order": order } }]);
    assert_eq!(below["content"]["readers"], reader);

    let (code, text) = shop.explain("text", &["cell", "subtotal", order]);
    assert_eq!(code, 0, "{text}");
    for part in [
        "value: 300",
        "a stored cell reads it",
        "height 1",
        "of lines",
        "total({",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let absent = "0".repeat(16);
    let (code, text) = shop.explain("text", &["cell", "total", &absent]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("not stored: orders has no row"), "{text}");
    for (args, why) in [
        (["cell", "totals", order], "it has: subtotal, total"),
        (
            ["cell", "total", r#"{"customer":"x"}"#],
            "the key does not fit",
        ),
        (["cell", "total", "7"], "the key does not fit"),
    ] {
        let (code, said) = shop.explain("text", &args);
        assert_eq!(code, 3, "{said}");
        assert!(said.contains(why), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_query_is_explained_by_what_it_reads_and_uses() {
    let shop = shop().await;
    let args = json!({ "customer": shop.customer }).to_string();
    let found = shop.json(&["query", "ordersOf", &args]);
    let reads = &found["reads"];
    assert_eq!(reads[0]["entries"]["index"], "byCustomer", "{found}");
    let equal = json!({ "customer": shop.customer });
    assert_eq!(reads[0]["entries"]["equal"], equal);
    let row = json!({ "row": { "table": "orders", "id": shop.order } });
    assert_eq!(reads[1], row, "{found}");
    let used = |what: &str| {
        let budgets = found["budgets"].as_array().unwrap();
        let found = budgets.iter().find(|b| b["setting"] == what);
        found.unwrap_or_else(|| panic!("{what}"))["used"].clone()
    };
    assert_eq!(
        used("FLOWER_LIMIT_ROWS_READ"),
        2,
        "an entry and its row: {found}"
    );
    assert_eq!(used("FLOWER_LIMIT_RANGES"), 1);
    assert_eq!(found["volatile"], false);
    assert_eq!(found["moreReads"], 0);

    let (code, text) = shop.explain("text", &["query", "ranking"]);
    assert_eq!(code, 0, "{text}");
    for part in [
        "entries of total.byValue, all",
        "BUDGET",
        "FLOWER_LIMIT_GAS",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let whole = shop.json(&["query", "listCustomers"]);
    assert_eq!(
        whole["reads"][0],
        json!({ "rows": { "table": "customers" } })
    );
    let refused = shop.json(&["query", "ordersOf"]);
    assert_eq!(refused["problem"]["code"], "invalid-args", "{refused}");
    let (code, said) = shop.explain("text", &["query", "ordersOf", "{"]);
    assert_eq!(code, 1, "{said}");
}
