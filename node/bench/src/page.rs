//! `docs/benchmarks/footprint.md` from runs that were kept. Says of each goal whether it is met.

use std::fmt::Write as _;

use crate::run::{Class, Mutation, Run};

/// What the first measurements of the model came to, an order: keys, and bytes of keys and JSON.
const MODEL_KEYS: f64 = 21.0;
const MODEL_BYTES: f64 = 2_437.0;

const HEAD: &str = "\
# Footprint

What the database takes for orders: each with a customer of its own (215 bytes of JSON), three
lines, a derived subtotal over the lines, and a total that is stored for every order
(`node/bench/src/workload.js`). Seeded through the evaluator and the store that serve, in one
process, with a receipt for each mutation; no network, no replication. Generated from the runs beside
this page; `flower bench footprint --orders N --output json` makes one.
";

/// A table: heading row, then rows.
fn table(out: &mut String, head: &[String], rows: &[Vec<String>]) {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    out.push_str(&line(head));
    let rule: Vec<String> = (0..head.len())
        .map(|at| if at == 0 { "---" } else { "---:" }.to_owned())
        .collect();
    out.push_str(&line(&rule));
    for row in rows {
        out.push_str(&line(row));
    }
}

fn head(first: &str, runs: &[Run]) -> Vec<String> {
    let sizes = runs
        .iter()
        .map(|run| format!("{} orders", grouped(run.orders)));
    std::iter::once(first.to_owned()).chain(sizes).collect()
}

/// With commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn row(name: impl Into<String>, runs: &[Run], of: impl Fn(&Run) -> String) -> Vec<String> {
    std::iter::once(name.into())
        .chain(runs.iter().map(of))
        .collect()
}

fn each(run: &Run, bytes: i64) -> String {
    format!("{:.0}", bytes as f64 / run.orders as f64)
}

fn class<'a>(run: &'a Run, name: &str) -> Option<&'a Class> {
    run.sizes.iter().find(|class| class.class == name)
}

/// Classes of an order, without receipts and what is there once.
fn of_orders(run: &Run) -> impl Iterator<Item = &Class> {
    let others = ["receipts", "application and marks"];
    run.sizes
        .iter()
        .filter(move |c| !others.contains(&&c.class[..]))
}

fn keys(run: &Run) -> f64 {
    of_orders(run).map(|c| c.keys).sum::<u64>() as f64 / run.orders as f64
}

fn bytes(run: &Run) -> f64 {
    let all = of_orders(run).map(|c| c.key_bytes + c.value_bytes);
    all.sum::<u64>() as f64 / run.orders as f64
}

/// The page for these runs, smallest first.
pub fn page(runs: &[Run]) -> String {
    let mut out = HEAD.to_owned();
    machine(&mut out, runs);
    stored(&mut out, runs);
    heap(&mut out, runs);
    starts(&mut out, runs);
    reads(&mut out, runs);
    mutations(&mut out, runs);
    goals(&mut out, runs);
    out
}

fn machine(out: &mut String, runs: &[Run]) {
    let mut seen = Vec::new();
    for run in runs {
        let m = &run.machine;
        let line = format!(
            "{} cores, {} GiB of memory, {} on {}; {}; commit {}",
            m.cores, m.memory_gib, m.system, m.architecture, run.build, run.commit
        );
        if !seen.contains(&line) {
            let _ = writeln!(out, "\n- {line}");
            seen.push(line);
        }
    }
    out.push_str(
        "\nOne run a size. Keys, bytes and work are the same in every run; times are of this machine. \
         Times of reads and mutations are the thread's processor time, the kernel's work for it \
         included, because other programs ran beside it; those of starts and of the log are by the \
         clock.\n",
    );
}

fn stored(out: &mut String, runs: &[Run]) {
    out.push_str(
        "\n## Stored\n\nBytes of keys and values an order, and keys an order, by class. Values are \
         counted without the eight bytes of the version before each.\n\n",
    );
    let Some(last) = runs.last() else { return };
    let mut rows: Vec<Vec<String>> = last
        .sizes
        .iter()
        .map(|c| {
            row(&*c.class, runs, |run| match class(run, &c.class) {
                None => "-".into(),
                Some(class) => {
                    let count = run.orders as f64;
                    let sum = (class.key_bytes + class.value_bytes) as f64 / count;
                    format!("{sum:.0} ({:.2})", class.keys as f64 / count)
                }
            })
        })
        .collect();
    rows.push(row("**all of an order**", runs, |run| {
        format!("**{:.0} ({:.2})**", bytes(run), keys(run))
    }));
    rows.push(row("`state.redb` after seeding", runs, |run| {
        each(run, run.file_bytes as i64)
    }));
    table(out, &head("bytes (keys) an order", runs), &rows);
    out.push_str(
        "\nA cell holds its root mark, height and dependencies itself, where the model had a key for \
         each: hence fewer keys. The file holds pages that are not full, and pages of earlier \
         versions that are used again.\n",
    );
}

fn heap(out: &mut String, runs: &[Run]) {
    out.push_str(
        "\n## Heap\n\nLive bytes, counted by an allocator that only the benchmark has; page cache limited \
         to 8 MiB and value cache to 4 MiB, so that the data fills both at every size.\n\n",
    );
    let rows = [
        row("both files open", runs, |r| {
            grouped(r.heap.opened.max(0) as u64)
        }),
        row("application loaded", runs, |r| {
            grouped(r.heap.application.max(0) as u64)
        }),
        row("every record read: page cache", runs, |r| {
            grouped(r.heap.page_cache)
        }),
        row("every record read: value cache", runs, |r| {
            grouped(r.heap.value_cache)
        }),
        row("**all but the two caches**", runs, |r| {
            format!("**{}**", grouped(r.heap.rest.max(0) as u64))
        }),
        row("a map of all keys and values, an order", runs, |r| {
            each(r, r.heap.map)
        }),
    ];
    table(out, &head("bytes", runs), &rows);
    out.push_str(
        "\nThe last but one is what was counted live less what the caches say they hold; the value cache \
         estimates what an entry takes, so that it may differ by a megabyte either way.\n",
    );
}

fn starts(out: &mut String, runs: &[Run]) {
    out.push_str(
        "\n## Starts\n\nMilliseconds, of the start with the median first mutation among five. Cold: the \
         system's file cache was emptied of both files. The application is loaded once a start and \
         worker, whatever the data. The first mutation is processor time as below, the rest by the \
         clock.\n\n",
    );
    let mut rows = Vec::new();
    for kind in ["cold", "warm"] {
        let of = |run: &Run, part: fn(&crate::run::Start) -> f64| {
            let start = run.starts.iter().find(|start| start.kind == kind);
            start.map_or("-".into(), |start| format!("{:.2}", part(start)))
        };
        rows.push(row(format!("{kind}: open both files"), runs, |r| {
            of(r, |s| s.open_ms)
        }));
        rows.push(row(format!("{kind}: load the application"), runs, |r| {
            of(r, |s| s.load_ms)
        }));
        rows.push(row(format!("{kind}: first query"), runs, |r| {
            of(r, |s| s.query_ms)
        }));
        rows.push(row(format!("{kind}: first mutation"), runs, |r| {
            of(r, |s| s.mutation_ms)
        }));
    }
    table(out, &head("ms", runs), &rows);
}

fn reads(out: &mut String, runs: &[Run]) {
    out.push_str(
        "\n## Point reads\n\nNanoseconds of one of 200,000 reads of up to as many different rows and cells, \
         drawn evenly, after one pass that is not measured. The file is in the system's cache. `redb \
         alone` is the store's view with its value cache off.\n\n",
    );
    let Some(last) = runs.last() else { return };
    let rows: Vec<Vec<String>> = last
        .reads
        .iter()
        .map(|read| {
            row(&*read.from, runs, |run| {
                let found = run.reads.iter().find(|other| other.from == read.from);
                found.map_or("-".into(), |found| format!("{:.0}", found.ns))
            })
        })
        .collect();
    table(out, &head("ns", runs), &rows);
}

fn mutation<'a>(run: &'a Run, name: &str, mib: u64) -> Option<&'a Mutation> {
    let mut all = run.mutations.iter();
    all.find(|m| m.mutation == name && m.page_cache_mib == mib)
}

fn mutations(out: &mut String, runs: &[Run]) {
    out.push_str(
        "\n## Mutations of one order\n\nMicroseconds to evaluate and apply one, p50 and p99 of 400, spread over \
         all orders. Making its log entry durable comes on top, shared by all that wait: it depends \
         on the disk alone.\n\n",
    );
    let Some(last) = runs.last() else { return };
    let mut rows: Vec<Vec<String>> = last
        .mutations
        .iter()
        .map(|m| {
            let name = format!(
                "{}, page cache of {} MiB",
                m.mutation,
                grouped(m.page_cache_mib)
            );
            row(name, runs, |run| {
                mutation(run, &m.mutation, m.page_cache_mib)
                    .map_or("-".into(), |m| format!("{:.0} / {:.0}", m.p50, m.p99))
            })
        })
        .collect();
    rows.push(row(
        "500 creates in one, ms: first and last eighth of the seeding",
        runs,
        |r| format!("{:.0} / {:.0}", r.seeding_ms.0, r.seeding_ms.1),
    ));
    table(out, &head("µs, p50 / p99", runs), &rows);
    out.push_str("\nWhat one does, whatever the machine (means of 50):\n\n");
    let rows: Vec<Vec<String>> = last
        .work
        .iter()
        .map(|work| {
            row(&*work.mutation, runs, |run| {
                let found = run
                    .work
                    .iter()
                    .find(|other| other.mutation == work.mutation);
                found.map_or("-".into(), |w| {
                    let (reads, cells) = (w.rows_read, w.cells);
                    format!(
                        "{reads} / {cells} / {} / {}",
                        w.keys_written, w.bytes_written
                    )
                })
            })
        })
        .collect();
    table(
        out,
        &head("reads / cells / keys written / bytes written", runs),
        &rows,
    );
}

/// One line of the goals.
fn goal(out: &mut String, met: bool, goal: &str, found: &str, reason: &str) {
    let verdict = if met { "met" } else { "**missed**" };
    let reason = if met { "" } else { reason };
    let _ = writeln!(out, "- {goal}: {found}; {verdict}.{reason}");
}

fn goals(out: &mut String, runs: &[Run]) {
    out.push_str("\n## Goals\n\n");
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else {
        return;
    };
    let span = format!(
        "{} against {} orders",
        grouped(last.orders),
        grouped(first.orders)
    );
    for m in last.mutations.iter().filter(|m| m.page_cache_mib > 1_024) {
        let Some(before) = mutation(first, &m.mutation, m.page_cache_mib) else {
            continue;
        };
        let ratio = m.p50 / before.p50;
        let what = format!("{} costs at most 1.1 times as much, {span}", m.mutation);
        goal(
            out,
            ratio <= 1.1,
            &what,
            &format!("{ratio:.2} (p50, all pages cached)"),
            " What it reads and writes is the same (table above). One run a size on a machine with \
             other work: two runs of one build differed by more than the tenth that is judged here.",
        );
    }
    let warm = last.starts.iter().find(|start| start.kind == "warm");
    let steady = mutation(last, "update", 64);
    if let (Some(warm), Some(steady)) = (warm, steady) {
        let ratio = warm.mutation_ms * 1e3 / steady.p50;
        goal(
            out,
            ratio <= 3.0,
            "The first mutation after a restart costs at most 3 times a steady one",
            &format!("{ratio:.1} (update, warm, {} orders)", grouped(last.orders)),
            " redb's page cache is empty after a start: its pages are read from the file first. \
             Nothing is derived, walked or checked.",
        );
    }
    heap_goal(out, first, last, &span);
    let (keys, bytes) = (keys(last), bytes(last));
    goal(
        out,
        keys <= MODEL_KEYS * 1.05 && bytes <= MODEL_BYTES * 1.05,
        "At most 21 keys and 2.4 KB of keys and values an order, within 5 %",
        &format!("{keys:.2} keys, {bytes:.0} bytes"),
        " Reader records name target and reader in full.",
    );
}

fn heap_goal(out: &mut String, first: &Run, last: &Run, span: &str) {
    let more = (last.orders - first.orders).max(1) as f64;
    // Without the page cache, where a run tells it.
    let beyond = |run: &Run| run.heap.opened - run.heap.opened_pages.unwrap_or(0) as i64;
    let opened = (beyond(last) - beyond(first)) as f64 / more;
    let rest = (last.heap.rest - first.heap.rest) as f64 / more;
    let found = format!(
        "{opened:.2} bytes an order more once both files are open, {rest:.2} once every record was \
         read, {span}"
    );
    goal(
        out,
        opened < 0.5 && rest < 0.5,
        "No heap for each row beyond the caches",
        &found,
        " It grows with the file, when that is opened and before any row is read: redb's map of free \
         pages has about two bits for each page of 4 KiB, and reading it leaves its stored form in the \
         page cache, in a page of the next power of two. Computed from the files' sizes the two \
         come to 44,184 bytes more at 100,000 orders than at 10,000 and to 195,560 more at 300,000; \
         counted were 43,916 and 195,464.",
    );
}
