//! Random handlers of derived values: statements that each add to `acc` on their own, so
//! that any of them can be left out.

use crate::{
    app::{App, Key},
    rng::Rng,
};

/// What a handler's statements can name.
struct Scope<'a> {
    app: &'a App,
    at: usize,
    key: Key,
    recursive: bool,
    /// Whether `row`, the row of the key, is there.
    row: bool,
}

/// Statements of the derived value number `at`. They read those before it; in a `recursive`
/// application also itself and later ones, through rows that name other rows.
pub fn random(rng: &mut Rng, app: &App, at: usize, recursive: bool) -> Vec<String> {
    let key = app.derived[at].key;
    let row = matches!(key, Key::Row(_)) && rng.chance(90);
    let scope = Scope {
        app,
        at,
        key,
        recursive,
        row,
    };
    let mut body = Vec::new();
    if let (Key::Row(table), true) = (key, row) {
        body.push(format!("const row = db.t{table}.get(key.id);"));
        body.push("acc += row ? row.w + 20 * row.g : 7;".into());
    }
    for _ in 0..1 + rng.below(4) {
        body.push(scope.statement(rng));
    }
    body
}

impl Scope<'_> {
    fn int(&self, rng: &mut Rng) -> String {
        let mut known = vec!["acc".to_owned(), rng.below(7).to_string()];
        match self.key {
            Key::Row(_) if self.row => {
                known.extend(["(row?.g ?? 1)", "(row?.w ?? 3)"].map(String::from));
            }
            Key::Row(_) => {}
            Key::Group => known.push("key.g".into()),
            Key::Pair => known.extend(["key.g", "key.h"].map(String::from)),
            Key::Text => known.push("key.s.length".into()),
        }
        let one = known[rng.below(known.len())].clone();
        if rng.chance(20) {
            let other = &known[rng.below(known.len())];
            return format!("{one} + {other}");
        }
        one
    }

    fn statement(&self, rng: &mut Rng) -> String {
        match rng.below(20) {
            0..=5 => self.range_term(rng),
            6..=13 => self.guarded_read(rng),
            14..=15 => self.fan_in(rng),
            16 => self.outburst(rng),
            17 => self.pages(rng),
            18 => self.early_end(rng),
            _ => "try { acc += db.t0.count(); } catch (e) { acc += e.name.length; }".into(),
        }
    }

    /// `db.tX.iK.range(…)`, perhaps descending, perhaps bounded; and the number X.
    fn range(&self, rng: &mut Rng, table: usize) -> String {
        let index = rng.below(self.app.tables[table].indexes.len());
        let on = self.app.tables[table].indexes[index].clone();
        let wanted = self.wanted(rng, table, &on);
        let desc = if rng.chance(35) { ".desc()" } else { "" };
        let take = match rng.chance(30) {
            true => format!(".take({})", rng.between(1, 4)),
            false => String::new(),
        };
        format!("db.t{table}.i{index}.range({wanted}){desc}{take}")
    }

    /// An equality prefix, then perhaps a range: windows within one value, and spanning ones.
    fn wanted(&self, rng: &mut Rng, table: usize, on: &[&str]) -> String {
        let equal = match rng.chance(30) {
            true => 0,
            false => 1 + rng.below(on.len()),
        };
        let mut parts = Vec::new();
        for field in &on[..equal] {
            parts.push(format!("{field}: {}", self.value(rng, table, field)));
        }
        match on.get(equal) {
            Some(field) if rng.chance(60) => {
                let low = rng.pick(&["gt", "gte"]);
                let high = rng.pick(&["lt", "lte"]);
                let value = self.value(rng, table, field);
                let bounds = match rng.below(3) {
                    0 => format!("{low}: {value}"),
                    1 => format!("{high}: {value}"),
                    _ => {
                        let other = self.value(rng, table, field);
                        format!("{low}: {value}, {high}: {other}")
                    }
                };
                parts.push(format!("{field}: {{ {bounds} }}"));
            }
            None if self.key == Key::Row(table) && rng.chance(40) => {
                let op = rng.pick(&["gt", "gte", "lt", "lte"]);
                parts.push(format!("id: {{ {op}: key.id }}"));
            }
            _ => {}
        }
        format!("{{ {} }}", parts.join(", "))
    }

    fn value(&self, rng: &mut Rng, table: usize, field: &str) -> String {
        let int = self.int(rng);
        match field {
            "g" => format!("mod({int}, 4)"),
            "w" => format!("mod({int}, 41) - 20"),
            "b" => format!("mod({int}, 2) === 0"),
            "s" => rng.pick(&["\"a\"", "\"b\"", "\"é\"", "null"]).into(),
            _ => format!("({}) ?? null", self.id(rng, self.app.tables[table].refers)),
        }
    }

    /// An id of a row of `table`, or nothing.
    fn id(&self, rng: &mut Rng, table: usize) -> String {
        let mut known = Vec::new();
        if let Key::Row(own) = self.key {
            if own == table {
                known.push("key.id".to_owned());
            }
            if self.row && self.app.tables[own].refers == table {
                known.extend(["row?.ref".to_owned(), "row?.ref".to_owned()]);
            }
        }
        if known.is_empty() || rng.chance(20) {
            let op = rng.pick(&["gte", "lte"]);
            let int = self.int(rng);
            known.push(format!(
                "db.t{table}.i0.range({{ g: {{ {op}: mod({int}, 4) }} }}).first()?.id"
            ));
        }
        known[rng.below(known.len())].clone()
    }

    fn range_term(&self, rng: &mut Rng) -> String {
        let table = rng.below(self.app.tables.len());
        let range = self.range(rng, table);
        match rng.below(8) {
            0 => format!("acc += {range}.sum(\"w\");"),
            1 => format!("acc += {range}.sum((r) => r.w * 2 + r.g);"),
            2 | 3 => format!("acc += {range}.count();"),
            4 => format!("acc += {range}.first()?.w ?? 11;"),
            5 => format!("acc += {range}.all().reduce((n, r) => n * 2 + r.w, 0) % 1000;"),
            6 => format!("for (const r of {range}) {{ acc += r.w; if (r.b) break; }}"),
            _ => format!("for (const r of {range}) acc += (r.s ?? \"none\").length;"),
        }
    }

    fn pages(&self, rng: &mut Rng) -> String {
        let table = rng.below(self.app.tables.len());
        let range = self.range(rng, table);
        format!(
            "{{ const range = {range}; const one = range.page({{ size: 2 }}); acc += one.rows.length; \
             if (one.cursor !== null) acc += 10 + range.page({{ size: 1, cursor: one.cursor }}).rows[0].w; }}"
        )
    }

    fn targets(&self) -> usize {
        self.at
    }

    /// Reads another derived value; perhaps caught, perhaps only sometimes.
    fn guarded_read(&self, rng: &mut Rng) -> String {
        let Some(read) = self.read(rng) else {
            return self.range_term(rng);
        };
        match rng.below(10) {
            0..=4 => read,
            5..=6 => format!(
                "try {{ {read} }} catch (e) {{ acc += e.name.length + e.message.length % 7 \
                 + (e.code ? 50 + e.data.acc : 0); }}"
            ),
            7..=8 => {
                let int = self.int(rng);
                format!("if (mod({int}, 3) !== 1) {{ {read} }}")
            }
            _ => format!("if (mod(acc, 2) === 0) {{ {read} }}"),
        }
    }

    fn read(&self, rng: &mut Rng) -> Option<String> {
        if self.recursive
            && rng.chance(60)
            && let Some(read) = self.recursion(rng)
        {
            return Some(read);
        }
        let target = match self.targets() {
            0 => return None,
            n => rng.below(n),
        };
        let get = |key: &str| match target % 2 {
            0 => format!("acc += num(get(D.d{target}, {key}));"),
            _ => format!("acc += 2 * num(db.d{target}.get({key}));"),
        };
        Some(match self.app.derived[target].key {
            Key::Row(table) => {
                let id = self.id(rng, table);
                format!("{{ const id = {id}; if (id) {} }}", get("{ id }"))
            }
            key => get(&self.plain_key(rng, key)),
        })
    }

    fn plain_key(&self, rng: &mut Rng, key: Key) -> String {
        let (one, two) = (self.int(rng), self.int(rng));
        match key {
            Key::Text => format!("{{ s: [\"a\", \"b\", \"\"][mod({one}, 3)] }}"),
            Key::Pair => format!("{{ h: mod({two}, 3), g: mod({one}, 4) }}"),
            Key::Row(_) | Key::Group => format!("{{ g: mod({one}, 4) }}"),
        }
    }

    /// Reads itself or a later one through `row.ref`: a cycle when rows name each other so.
    fn recursion(&self, rng: &mut Rng) -> Option<String> {
        let Key::Row(own) = self.key else { return None };
        let to = self.app.tables[own].refers;
        let found: Vec<usize> = (self.at..self.app.derived.len())
            .filter(|at| self.app.derived[*at].key == Key::Row(to))
            .collect();
        if !self.row || found.is_empty() {
            return None;
        }
        let target = found[rng.below(found.len())];
        Some(format!(
            "if (row?.ref) acc += num(get(D.d{target}, {{ id: row.ref }}));"
        ))
    }

    /// One cell for each of some rows.
    fn fan_in(&self, rng: &mut Rng) -> String {
        if self.targets() == 0 {
            return self.range_term(rng);
        }
        let target = rng.below(self.targets());
        let table = rng.below(self.app.tables.len());
        let (table, key) = match self.app.derived[target].key {
            Key::Row(of) => (of, "{ id: r.id }"),
            Key::Group => (table, "{ g: r.g }"),
            Key::Pair => (table, "{ g: r.g, h: mod(r.w, 3) }"),
            Key::Text => (table, "{ s: r.s ?? \"\" }"),
        };
        let range = self.range(rng, table);
        match rng.chance(50) {
            true => format!("for (const r of {range}) acc += num(get(D.d{target}, {key}));"),
            false => format!("acc += {range}.sum((r) => num(get(D.d{target}, {key})));"),
        }
    }

    /// Fails for some values.
    fn outburst(&self, rng: &mut Rng) -> String {
        let n = rng.below(9);
        let failure = match rng.below(4) {
            0 => "throw new Error(\"bad \" + acc);",
            1 => "throw fault(\"odd\", { data: { acc } });",
            2 => "throw new RangeError(\"far\");",
            _ => "return new Map();",
        };
        format!("if (mod(acc, 9) === {n}) {failure}")
    }

    /// Ends early for some values, so that later reads vanish.
    fn early_end(&self, rng: &mut Rng) -> String {
        let n = rng.below(5);
        format!("if (mod(acc, 5) === {n}) return null;")
    }
}
